import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Writes and reads partition 0 of a topic after its leader has changed.
 *
 * <p>Arguments: bootstrap servers, topic, a file that exists once the leader has changed. It would
 * wait for ten minutes before it asks for the leader.
 */
public final class LeaderChange {
  private static final long BACKOFF_MS = 600_000;

  public static void main(String[] arguments) throws Exception {
    String topic = arguments[1];
    Properties settings = new Properties();
    settings.put("bootstrap.servers", arguments[0]);
    settings.put("retry.backoff.ms", BACKOFF_MS);
    settings.put("retry.backoff.max.ms", BACKOFF_MS);
    settings.put("delivery.timeout.ms", (int) BACKOFF_MS);
    settings.put("enable.idempotence", false);
    settings.put("linger.ms", 0);
    settings.put("auto.offset.reset", "earliest");
    TopicPartition moved = new TopicPartition(topic, 0);
    try (KafkaProducer<String, String> producer =
            new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
        KafkaConsumer<String, String> consumer =
            new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
      producer.send(new ProducerRecord<>(topic, 1, "", "first")).get();
      consumer.assign(List.of(moved));
      consumer.seek(moved, 0);
      consumer.poll(Duration.ofSeconds(1));
      System.out.println("ready");
      while (!Files.exists(Path.of(arguments[2]))) {
        consumer.poll(Duration.ofMillis(100));
      }
      long offset = producer.send(new ProducerRecord<>(topic, 0, "", "second")).get().offset();
      System.out.println("sent " + offset);
      while (true) {
        consumer
            .poll(Duration.ofMillis(100))
            .forEach(record -> System.out.println("read " + record.value()));
      }
    }
  }
}
