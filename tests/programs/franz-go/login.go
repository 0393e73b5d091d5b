// Log in over TLS, produce a record and read it. See ../README.md for the arguments.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

func logIn(bootstrap, mechanism, user, password, authority, topic string) error {
	pem, err := os.ReadFile(authority)
	if err != nil {
		return err
	}
	trusted := x509.NewCertPool()
	if !trusted.AppendCertsFromPEM(pem) {
		return errors.New(authority + " has no certificate")
	}
	keys := scram.Auth{User: user, Pass: password}
	mechanisms := map[string]sasl.Mechanism{
		"PLAIN":         plain.Auth{User: user, Pass: password}.AsMechanism(),
		"SCRAM-SHA-256": keys.AsSha256Mechanism(),
		"SCRAM-SHA-512": keys.AsSha512Mechanism(),
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(bootstrap),
		kgo.SASL(mechanisms[mechanism]),
		kgo.DialTLSConfig(&tls.Config{RootCAs: trusted}),
		kgo.AllowAutoTopicCreation(),
		kgo.DefaultProduceTopic(topic),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := client.Ping(ctx); err != nil {
		return err
	}
	if err := client.ProduceSync(ctx, kgo.StringRecord("one")).FirstErr(); err != nil {
		return err
	}
	fetches := client.PollRecords(ctx, 1)
	if err := fetches.Err(); err != nil {
		return err
	}
	fetches.EachRecord(func(record *kgo.Record) { fmt.Println(string(record.Value)) })
	return nil
}
