import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Commits one transaction of one record after the other, until it is killed.
 *
 * <p>Arguments: bootstrap servers, topic, transactional id. Its connections are closed while it
 * waits, so each transaction reads the features of the broker again.
 */
public final class SteadyProducer {
  private static final int IDLE_MS = 200;
  private static final int PAUSE_MS = 600;

  public static void main(String[] arguments) throws InterruptedException {
    Properties settings = new Properties();
    settings.put("bootstrap.servers", arguments[0]);
    settings.put("transactional.id", arguments[2]);
    settings.put("connections.max.idle.ms", IDLE_MS);
    StringSerializer text = new StringSerializer();
    try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings, text, text)) {
      producer.initTransactions();
      for (int n = 0; ; n++) {
        producer.beginTransaction();
        producer.send(new ProducerRecord<>(arguments[1], Integer.toString(n)));
        producer.commitTransaction();
        System.out.println("committed " + n);
        Thread.sleep(PAUSE_MS);
      }
    }
  }
}
