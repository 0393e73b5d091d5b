import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.state.BuiltInDslStoreSuppliers.InMemoryDslStoreSuppliers;
import org.apache.kafka.streams.state.Stores;

/**
 * One process of a streams group (KIP-1071), with stores in memory that have changelogs.
 *
 * <p>Arguments: bootstrap servers, group id, processing guarantee, number of threads, "words" or
 * "join", folder for the state, and topics; for "words" also the transaction timeout in milliseconds
 * and, of a static member, its instance id. "words" counts the words of a topic, without a cache:
 * each word makes one record of the output. "join" joins two topics within an hour; values of the
 * first begin with its key of the join and a comma.
 */
public final class StreamsMember {
  private static final Serde<String> TEXT = Serdes.String();

  public static void main(String[] arguments) {
    Properties settings = new Properties();
    settings.putAll(
        Map.of(
            StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0],
            StreamsConfig.APPLICATION_ID_CONFIG, arguments[1],
            StreamsConfig.PROCESSING_GUARANTEE_CONFIG, arguments[2],
            StreamsConfig.NUM_STREAM_THREADS_CONFIG, arguments[3],
            StreamsConfig.GROUP_PROTOCOL_CONFIG, "streams",
            StreamsConfig.STATE_DIR_CONFIG, arguments[5],
            StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 100,
            StreamsConfig.REPLICATION_FACTOR_CONFIG, 1,
            StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0,
            ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest"));
    settings.putAll(
        Map.of(
            StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class,
            StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class,
            StreamsConfig.REPARTITION_PURGE_INTERVAL_MS_CONFIG, 3_600_000));
    if (arguments.length > 9) {
      settings.put(ConsumerConfig.GROUP_INSTANCE_ID_CONFIG, arguments[9]);
    }
    StreamsBuilder builder = new StreamsBuilder();
    if (arguments[4].equals("words")) {
      settings.put(StreamsConfig.producerPrefix("transaction.timeout.ms"), arguments[8]);
      countWords(builder, arguments[6], arguments[7]);
    } else {
      join(builder, arguments[6], arguments[7], arguments[8]);
    }
    KafkaStreams streams = new KafkaStreams(builder.build(), settings);
    streams.setStateListener((now, before) -> System.out.println("state " + now));
    streams.setUncaughtExceptionHandler(
        error -> {
          System.out.println("fatal " + error);
          error.printStackTrace();
          return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
    Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
    streams.start();
  }

  private static void countWords(StreamsBuilder builder, String lines, String counts) {
    builder.<String, String>stream(lines)
        .flatMapValues(line -> List.of(line.split(" ")))
        .selectKey((key, word) -> word)
        .repartition(Repartitioned.<String, String>as("words").withNumberOfPartitions(4))
        .groupByKey()
        .count(Materialized.as(Stores.inMemoryKeyValueStore("counts")))
        .toStream()
        .to(counts, Produced.with(TEXT, Serdes.Long()));
  }

  private static void join(StreamsBuilder builder, String left, String right, String joined) {
    KStream<String, String> keyed =
        builder.<String, String>stream(left)
            .selectKey((key, value) -> value.substring(0, value.indexOf(',')));
    keyed
        .join(
            builder.<String, String>stream(right),
            (one, other) -> one + "|" + other,
            JoinWindows.ofTimeDifferenceAndGrace(Duration.ofHours(1), Duration.ofHours(1)),
            StreamJoined.<String, String, String>with(new InMemoryDslStoreSuppliers())
                .withKeySerde(TEXT)
                .withValueSerde(TEXT)
                .withOtherValueSerde(TEXT)
                .withName("pairs")
                .withStoreName("pairs"))
        .to(joined);
  }

  private StreamsMember() {}
}
