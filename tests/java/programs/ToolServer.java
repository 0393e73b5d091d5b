import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.PrintStream;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.List;

/**
 * Runs Apache Kafka's command line tools one after the other in one JVM.
 *
 * <p>A call on stdin is a count of fields, and the fields: the input of the tool, its class, its
 * arguments. The answer on stdout is the exit code, the tool's output and its errors. Counts, the
 * code and the length before each field are 32 bits.
 */
public final class ToolServer {
  private static final List<Runnable> HOOKS = new ArrayList<>();
  private static Integer code;

  public static void main(String[] arguments)
      throws IOException, ReflectiveOperationException {
    DataInputStream calls = new DataInputStream(System.in);
    DataOutputStream answers = new DataOutputStream(System.out);
    PrintStream errors = System.err;
    InvocationHandler end = (exit, method, given) -> end((Integer) given[0], (String) given[1]);
    set("setExitProcedure", end);
    set("setHaltProcedure", end);
    set(
        "setShutdownHookAdder",
        (exit, method, given) -> {
          HOOKS.add((Runnable) given[1]);
          return null;
        });
    while (true) {
      byte[][] call;
      try {
        call = new byte[calls.readInt()][];
      } catch (EOFException ended) {
        return;
      }
      for (int i = 0; i < call.length; i++) {
        call[i] = new byte[calls.readInt()];
        calls.readFully(call[i]);
      }
      ByteArrayOutputStream out = new ByteArrayOutputStream();
      ByteArrayOutputStream err = new ByteArrayOutputStream();
      System.setIn(new ByteArrayInputStream(call[0]));
      System.setOut(new PrintStream(out, true));
      System.setErr(new PrintStream(err, true));
      code = null;
      HOOKS.clear();
      run(call);
      HOOKS.forEach(Runnable::run);
      answers.writeInt(code);
      System.setErr(errors);
      for (ByteArrayOutputStream each : new ByteArrayOutputStream[] {out, err}) {
        answers.writeInt(each.size());
        each.writeTo(answers);
      }
      answers.flush();
    }
  }

  private static void run(byte[][] call) {
    String[] arguments = new String[call.length - 2];
    for (int i = 0; i < arguments.length; i++) {
      arguments[i] = new String(call[i + 2]);
    }
    try {
      Class<?> tool = Class.forName(new String(call[1]));
      tool.getMethod("main", String[].class).invoke(null, (Object) arguments);
      exit(0);
    } catch (InvocationTargetException thrown) {
      if (!(thrown.getCause() instanceof Ended)) {
        thrown.getCause().printStackTrace();
        exit(1);
      }
    } catch (ReflectiveOperationException missing) {
      missing.printStackTrace();
      exit(1);
    }
  }

  /** Set how tools end, through a class that has another package since Kafka 4.4. */
  private static void set(String setter, InvocationHandler handler)
      throws ReflectiveOperationException {
    Class<?> exit;
    try {
      exit = Class.forName("org.apache.kafka.common.utils.internals.Exit");
    } catch (ClassNotFoundException older) {
      exit = Class.forName("org.apache.kafka.common.utils.Exit");
    }
    for (Method method : exit.getMethods()) {
      if (method.getName().equals(setter)) {
        Class<?> given = method.getParameterTypes()[0];
        ClassLoader loader = given.getClassLoader();
        method.invoke(null, Proxy.newProxyInstance(loader, new Class<?>[] {given}, handler));
      }
    }
  }

  private static Object end(int code, String message) {
    if (message != null) {
      System.err.println(message);
    }
    exit(code);
    throw new Ended();
  }

  /** The first code counts: a tool may catch `Ended` and end again, as after a failure. */
  private static void exit(int first) {
    if (code == null) {
      code = first;
    }
  }

  /** The end of a tool that would end the JVM. */
  private static final class Ended extends Error {}

  private ToolServer() {}
}
