// One kfake broker on a port, in memory, until SIGTERM.
package main

import (
	"log"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/twmb/franz-go/pkg/kfake"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: kfake-bench PORT")
	}
	port, err := strconv.Atoi(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	cluster, err := kfake.NewCluster(
		kfake.NumBrokers(1), kfake.Ports(port),
		kfake.AllowAutoTopicCreation(), kfake.DefaultNumPartitions(1), // as the other brokers
	)
	if err != nil {
		log.Fatal(err)
	}
	defer cluster.Close()
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM, syscall.SIGINT)
	<-end
}
