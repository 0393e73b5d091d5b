import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Sends records that are due later, some in transactions, and prints each as it is delivered, until
 * the one that is due last.
 *
 * <p>Arguments: bootstrap servers, schedule topic, target topic, transactional id. A line has key,
 * value, kafkawire-scheduled-from, the due time and the time at which the record was polled.
 */
public final class ScheduledRecords {
  private static final String LAST = "by timestamp";

  public static void main(String[] arguments) throws Exception {
    Properties settings = new Properties();
    settings.put("bootstrap.servers", arguments[0]);
    StringSerializer text = new StringSerializer();
    try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings, text, text)) {
      ProducerRecord<String, String> after = new ProducerRecord<>(arguments[1], 0, "by delay", "a");
      after.headers().add("kafkawire-deliver-after", "500".getBytes(StandardCharsets.UTF_8));
      producer.send(after).get();
    }
    settings.put("transactional.id", arguments[3]);
    try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings, text, text)) {
      producer.initTransactions();
      producer.beginTransaction();
      long due = System.currentTimeMillis() + 1000;
      producer.send(new ProducerRecord<>(arguments[1], 0, due, "aborted", "b")).get();
      producer.abortTransaction();
      producer.beginTransaction();
      producer.send(new ProducerRecord<>(arguments[1], 0, due, "committed", "c")).get();
      producer.commitTransaction();
      producer.beginTransaction();
      long last = System.currentTimeMillis() + 1500;
      producer.send(new ProducerRecord<>(arguments[1], 0, last, LAST, "d")).get();
      producer.commitTransaction();
    }
    settings.remove("transactional.id");
    settings.put("isolation.level", "read_committed");
    StringDeserializer read = new StringDeserializer();
    try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings, read, read)) {
      TopicPartition target = new TopicPartition(arguments[2], 0);
      consumer.assign(List.of(target));
      consumer.seekToBeginning(List.of(target));
      for (boolean ended = false; !ended; ) {
        for (ConsumerRecord<String, String> each : consumer.poll(Duration.ofMillis(200))) {
          byte[] from = each.headers().lastHeader("kafkawire-scheduled-from").value();
          System.out.println(
              String.join(
                  "|",
                  each.key(),
                  each.value(),
                  new String(from, StandardCharsets.UTF_8),
                  Long.toString(each.timestamp()),
                  Long.toString(System.currentTimeMillis())));
          ended = each.key().equals(LAST);
        }
      }
    }
  }
}
