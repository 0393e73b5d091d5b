// Consume, transform, produce with franz-go, exactly once: each record of IN goes upper-cased to
// OUT, in transactions that also commit the offsets. Or log in, see login.go.
// See ../README.md for the arguments.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const recordsPerTransaction = 50

func main() {
	if len(os.Args) == 8 && os.Args[1] == "login" {
		if err := logIn(os.Args[2], os.Args[3], os.Args[4], os.Args[5], os.Args[6], os.Args[7]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if len(os.Args) != 6 {
		fmt.Fprintln(os.Stderr, "usage: copy BOOTSTRAP ID IN OUT HOLD")
		fmt.Fprintln(os.Stderr, "       copy login BOOTSTRAP MECHANISM USER PASSWORD CA TOPIC")
		os.Exit(2)
	}
	hold, err := strconv.Atoi(os.Args[5])
	if err == nil {
		err = run(os.Args[1], os.Args[2], os.Args[3], os.Args[4], hold)
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func run(bootstrap, id, from, to string, hold int) error {
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(bootstrap),
		kgo.TransactionalID(id),
		kgo.ConsumerGroup(id),
		kgo.InstanceID(id), // a restarted process takes its partitions over at once
		kgo.ConsumeTopics(from),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RequireStableFetchOffsets(),
		kgo.DefaultProduceTopic(to),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	)
	if err != nil {
		return err
	}
	defer session.Close()
	// End the transaction of a killed process now. Otherwise that happens with the first Produce,
	// and until then its pending offsets, if it had sent any, keep this group from its own.
	if _, _, err := session.Client().ProducerID(context.Background()); err != nil {
		return err
	}
	fmt.Println("ready")
	for number := 1; ; {
		copied, err := copySome(session, number == hold)
		if err != nil {
			return err
		}
		if copied {
			fmt.Println("committed", number)
			number++
		}
	}
}

// copySome copies what one poll returns in one transaction, and reports whether it was committed:
// a rebalance ends it with an abort. With hold it stays open until the process is killed.
func copySome(session *kgo.GroupTransactSession, hold bool) (bool, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	fetches := session.PollRecords(ctx, recordsPerTransaction)
	if err := fetches.Err(); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return false, err
	}
	if fetches.NumRecords() == 0 {
		return false, nil
	}
	if err := session.Begin(); err != nil {
		return false, err
	}
	var failed kgo.FirstErrPromise
	fetches.EachRecord(func(record *kgo.Record) {
		out := &kgo.Record{Partition: record.Partition, Value: bytes.ToUpper(record.Value)}
		session.Produce(ctx, out, failed.Promise())
	})
	err := failed.Err()
	if err == nil && hold {
		fmt.Println("open")
		select {}
	}
	return session.End(ctx, err == nil)
}
