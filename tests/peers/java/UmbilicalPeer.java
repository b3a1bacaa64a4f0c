// Hadoop's own RPC client and server, speaking the umbilical.
//
// Janino, which is among Spark's jars, compiles this file when the test runs; it knows no lambdas.
// Messages are dynamic: Google's Java runtime parses and prints them from our descriptor, so both
// the framing and the payloads are checked by code that is not ours.
package com.datatorrent.stram.api;

import java.io.ByteArrayInputStream;
import java.io.DataInputStream;
import java.net.InetSocketAddress;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.io.Text;
import org.apache.hadoop.ipc.ProtobufRpcEngine2;
import org.apache.hadoop.ipc.RPC;
import org.apache.hadoop.ipc.Server;
import org.apache.hadoop.security.UserGroupInformation;
import org.apache.hadoop.security.token.SecretManager;
import org.apache.hadoop.security.token.Token;
import org.apache.hadoop.security.token.TokenIdentifier;
import org.apache.hadoop.security.token.TokenInfo;
import org.apache.hadoop.security.token.TokenSelector;
import org.apache.hadoop.security.token.delegation.AbstractDelegationTokenIdentifier;
import org.apache.hadoop.thirdparty.protobuf.BlockingService;
import org.apache.hadoop.thirdparty.protobuf.DescriptorProtos;
import org.apache.hadoop.thirdparty.protobuf.Descriptors;
import org.apache.hadoop.thirdparty.protobuf.DynamicMessage;
import org.apache.hadoop.thirdparty.protobuf.Empty;
import org.apache.hadoop.thirdparty.protobuf.Message;
import org.apache.hadoop.thirdparty.protobuf.RpcController;
import org.apache.hadoop.thirdparty.protobuf.ServiceException;

// Replies are declared as Empty because the engine needs a generated class to parse into; Empty
// keeps every field as unknown, so no byte is lost.
@TokenInfo(PeerSelector.class)
public interface StreamingContainerUmbilicalProtocol {
  long versionID = 201208081755L;

  Empty getInitContext(RpcController controller, Message request) throws ServiceException;

  Empty log(RpcController controller, Message request) throws ServiceException;

  Empty reportError(RpcController controller, Message request) throws ServiceException;

  Empty processHeartbeat(RpcController controller, Message request) throws ServiceException;

  Empty nonsense(RpcController controller, Message request) throws ServiceException;
}

// Tokens: Hadoop's own layout of identifiers under Stram's kind.
public class PeerIdentifier extends AbstractDelegationTokenIdentifier {
  public static final Text KIND = new Text("DT_DELEGATION_TOKEN");

  public PeerIdentifier() {}

  public PeerIdentifier(String owner) {
    super(new Text(owner), new Text(""), new Text(""));
    setIssueDate(1700000000000L);
    setMaxDate(Long.MAX_VALUE / 2);
    setSequenceNumber(300);
    setMasterKeyId(-1000);
  }

  public Text getKind() {
    return KIND;
  }
}

// A password is the identifier's owner turned round: enough to tell a right one from a wrong one.
public class PeerSecrets extends SecretManager {
  protected byte[] createPassword(TokenIdentifier identifier) {
    String owner = ((PeerIdentifier) identifier).getOwner().toString();
    return new StringBuilder(owner).reverse().toString().getBytes();
  }

  public byte[] retrievePassword(TokenIdentifier identifier) throws SecretManager.InvalidToken {
    if (((PeerIdentifier) identifier).getOwner().toString().startsWith("gone")) {
      throw new SecretManager.InvalidToken("the token was cancelled");
    }
    return createPassword(identifier);
  }

  public TokenIdentifier createIdentifier() {
    return new PeerIdentifier();
  }
}

public class PeerSelector implements TokenSelector {
  public Token selectToken(Text service, Collection tokens) {
    for (Iterator all = tokens.iterator(); all.hasNext(); ) {
      Token token = (Token) all.next();
      if (PeerIdentifier.KIND.equals(token.getKind()) && service.equals(token.getService())) {
        return token;
      }
    }
    return null;
  }
}

public class UmbilicalPeer implements BlockingService {
  private final Descriptors.ServiceDescriptor service;
  private final Configuration conf = new Configuration();
  private final Map replies = new HashMap();
  private final List requests = new ArrayList();
  private RPC.Server server;
  private String lastUser;
  private StreamingContainerUmbilicalProtocol proxy;

  public UmbilicalPeer(byte[] fileDescriptor) throws Exception {
    DescriptorProtos.FileDescriptorProto proto =
        DescriptorProtos.FileDescriptorProto.parseFrom(fileDescriptor);
    Descriptors.FileDescriptor file =
        Descriptors.FileDescriptor.buildFrom(proto, new Descriptors.FileDescriptor[0]);
    this.service = file.findServiceByName("StreamingContainerUmbilicalProtocol");
    RPC.setProtocolEngine(
        conf, StreamingContainerUmbilicalProtocol.class, ProtobufRpcEngine2.class);
  }

  // The client.

  // `token` in Hadoop's URL form; null connects without one.
  public void connect(String host, int port, String token) throws Exception {
    UserGroupInformation user = UserGroupInformation.createRemoteUser("ada");
    if (token != null) {
      Token decoded = new Token();
      decoded.decodeFromUrlString(token);
      decoded.setService(new Text(host + ":" + port));
      user.addToken(decoded);
    }
    proxy =
        (StreamingContainerUmbilicalProtocol)
            RPC.getProtocolProxy(
                    StreamingContainerUmbilicalProtocol.class,
                    StreamingContainerUmbilicalProtocol.versionID,
                    new InetSocketAddress(host, port),
                    user,
                    conf,
                    org.apache.hadoop.net.NetUtils.getDefaultSocketFactory(conf))
                .getProxy();
  }

  // The reply's bytes, as Java's protobuf writes them after parsing ours.
  public byte[] call(String method, byte[] request) throws Exception {
    Descriptors.MethodDescriptor called = service.findMethodByName(method);
    Descriptors.MethodDescriptor shape = called == null ? service.findMethodByName("log") : called;
    DynamicMessage message = DynamicMessage.parseFrom(shape.getInputType(), request);
    Empty reply;
    if (method.equals("getInitContext")) {
      reply = proxy.getInitContext(null, message);
    } else if (method.equals("log")) {
      reply = proxy.log(null, message);
    } else if (method.equals("reportError")) {
      reply = proxy.reportError(null, message);
    } else if (method.equals("processHeartbeat")) {
      reply = proxy.processHeartbeat(null, message);
    } else {
      reply = proxy.nonsense(null, message);
    }
    return DynamicMessage.parseFrom(shape.getOutputType(), reply.toByteArray()).toByteArray();
  }

  public long callMany(String method, byte[] request, int count) throws Exception {
    long started = System.nanoTime();
    for (int i = 0; i < count; i++) {
      call(method, request);
    }
    return System.nanoTime() - started;
  }

  public void disconnect() {
    RPC.stopProxy(proxy);
  }

  // The server.

  public int serve(boolean withTokens) throws Exception {
    RPC.Builder builder = new RPC.Builder(conf);
    builder.setProtocol(StreamingContainerUmbilicalProtocol.class);
    builder.setInstance(this);
    builder.setBindAddress("127.0.0.1");
    builder.setPort(0);
    builder.setNumHandlers(2);
    if (withTokens) {
      builder.setSecretManager(new PeerSecrets());
    }
    server = builder.build();
    server.start();
    return server.getListenerAddress().getPort();
  }

  public void stop() {
    server.stop();
  }

  // A token that `serve(true)` takes, in Hadoop's URL form.
  public String issue(String owner) throws Exception {
    return new Token(new PeerIdentifier(owner), new PeerSecrets()).encodeToUrlString();
  }

  // What Hadoop's classes read out of one of our tokens.
  public String describe(String token) throws Exception {
    Token decoded = new Token();
    decoded.decodeFromUrlString(token);
    PeerIdentifier identifier = new PeerIdentifier();
    identifier.readFields(new DataInputStream(new ByteArrayInputStream(decoded.getIdentifier())));
    return identifier.getOwner()
        + " " + identifier.getIssueDate()
        + " " + identifier.getMaxDate()
        + " " + identifier.getSequenceNumber()
        + " " + identifier.getMasterKeyId()
        + " " + decoded.getKind()
        + " " + decoded.getService();
  }

  // Who made the last call.
  public String lastUser() {
    return lastUser;
  }

  // What the method answers from now on; null makes it throw.
  public void answer(String method, byte[] reply) throws Exception {
    Descriptors.Descriptor type = service.findMethodByName(method).getOutputType();
    replies.put(method, reply == null ? null : DynamicMessage.parseFrom(type, reply));
  }

  // The last request, as Java's protobuf prints it.
  public String lastRequest() {
    return requests.get(requests.size() - 1).toString();
  }

  public Descriptors.ServiceDescriptor getDescriptorForType() {
    return service;
  }

  public Message callBlockingMethod(
      Descriptors.MethodDescriptor method, RpcController controller, Message request)
      throws ServiceException {
    requests.add(request);
    lastUser = Server.getRemoteUser().getUserName();
    Object reply = replies.get(method.getName());
    if (reply == null) {
      throw new ServiceException(new java.io.IOException("refused on purpose"));
    }
    return (Message) reply;
  }

  public Message getRequestPrototype(Descriptors.MethodDescriptor method) {
    return DynamicMessage.getDefaultInstance(method.getInputType());
  }

  public Message getResponsePrototype(Descriptors.MethodDescriptor method) {
    return DynamicMessage.getDefaultInstance(method.getOutputType());
  }
}
