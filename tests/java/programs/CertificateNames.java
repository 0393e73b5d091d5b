import java.io.ByteArrayInputStream;
import java.nio.charset.StandardCharsets;
import java.security.cert.CertificateException;
import java.security.cert.CertificateFactory;
import java.security.cert.X509Certificate;
import java.util.Base64;
import org.apache.kafka.common.security.ssl.SslPrincipalMapper;

/**
 * Prints the name that Apache Kafka gives to the client of each certificate.
 *
 * <p>Arguments: `ssl.principal.mapping.rules`, and certificates in Base64. A line for each of them:
 * the name in UTF-8 and Base64, or "!" where Java cannot read it or no rule matches.
 */
public final class CertificateNames {
  public static void main(String[] arguments) throws CertificateException {
    SslPrincipalMapper mapper = SslPrincipalMapper.fromRules(arguments[0]);
    CertificateFactory factory = CertificateFactory.getInstance("X.509");
    for (int i = 1; i < arguments.length; i++) {
      System.out.println(name(mapper, factory, Base64.getDecoder().decode(arguments[i])));
    }
  }

  private static String name(SslPrincipalMapper mapper, CertificateFactory factory, byte[] data) {
    try {
      X509Certificate read =
          (X509Certificate) factory.generateCertificate(new ByteArrayInputStream(data));
      String name = mapper.getName(read.getSubjectX500Principal().getName());
      return Base64.getEncoder().encodeToString(name.getBytes(StandardCharsets.UTF_8));
    } catch (Exception unusable) {
      return "!";
    }
  }

  private CertificateNames() {}
}
