import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;

/**
 * Kafka Streams with exactly_once_v2: counts words through a repartition topic and a store with a
 * changelog. Nothing is cached, so every word of the input makes one record of the output.
 *
 * <p>Arguments: bootstrap servers, application id, input topic, output topic, folder of the store.
 */
public final class WordCount {
  public static void main(String[] arguments) {
    Properties settings = new Properties();
    settings.putAll(
        Map.of(
            StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0],
            StreamsConfig.APPLICATION_ID_CONFIG, arguments[1],
            StreamsConfig.STATE_DIR_CONFIG, arguments[4],
            StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2,
            StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 100,
            StreamsConfig.REPLICATION_FACTOR_CONFIG, 1,
            StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2,
            StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0));
    settings.putAll(
        Map.of(
            StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class,
            StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class,
            StreamsConfig.REPARTITION_PURGE_INTERVAL_MS_CONFIG, 3_600_000,
            ConsumerConfig.SESSION_TIMEOUT_MS_CONFIG, 2_000,
            ConsumerConfig.HEARTBEAT_INTERVAL_MS_CONFIG, 500,
            ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest"));
    StreamsBuilder builder = new StreamsBuilder();
    builder.<String, String>stream(arguments[2])
        .flatMapValues(line -> List.of(line.split(" ")))
        .groupBy((key, word) -> word, Grouped.as("words"))
        .count(Materialized.as("counts"))
        .toStream()
        .to(arguments[3], Produced.with(Serdes.String(), Serdes.Long()));
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

  private WordCount() {}
}
