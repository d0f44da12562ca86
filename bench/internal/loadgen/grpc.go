package loadgen

import (
	"bytes"
	"fmt"
	"net/http"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
)

// callersPerConnection share a connection of gRPC.
const callersPerConnection = 64

// A GRPCClient is a Connection to the rate limit service of Envoy. Its status is
// 200 if the response says OK, and 429 if it says OVER_LIMIT; the response must be
// by a limit. There is no body.
type GRPCClient struct {
	expiry
	conn     *grpc.ClientConn // that callersPerConnection share
	owner    bool             // closes it
	request  []byte
	digits   []byte     // of the client's name, within request
	sent     chan int64 // at most one
	response rls.RateLimitResponse
}

// DialGRPC returns n callers of the service at addr. They ask for a domain about
// one entry with that key, whose value is the client's name. It doesn't wait for
// the connections.
func DialGRPC(addr, domain, key string, n int) (callers Connections, err error) {
	var conn *grpc.ClientConn
	for i := range n {
		owner := i%callersPerConnection == 0
		if owner {
			if conn, err = grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
				return nil, err
			}
		}
		request, err := proto.Marshal(&rls.RateLimitRequest{Domain: domain, Descriptors: []*common.RateLimitDescriptor{{
			Entries: []*common.RateLimitDescriptor_Entry{{Key: key, Value: ClientName(0)}},
		}}})
		if err != nil {
			return nil, err
		}
		name := bytes.LastIndex(request, []byte(ClientPrefix)) + len(ClientPrefix)
		c := &GRPCClient{conn: conn, owner: owner, request: request, digits: request[name : name+ClientDigits], sent: make(chan int64, 1)}
		c.Renew()
		callers = append(callers, c)
	}
	return callers, nil
}

// Send implements Connection. The request is on its way when Receive is called: a call of
// gRPC costs a goroutine less where it isn't a stream.
func (c *GRPCClient) Send(n int64) error {
	c.sent <- n
	return nil
}

// Receive implements Connection.
func (c *GRPCClient) Receive() (status int, body []byte, err error) {
	ctx := c.context()
	select {
	case n := <-c.sent:
		putDigits(c.digits, n)
		if err := c.conn.Invoke(ctx, rls.RateLimitService_ShouldRateLimit_FullMethodName, &c.request, &c.response, grpc.ForceCodec(encoded{})); err != nil {
			return 0, nil, err
		}
		switch code := c.response.OverallCode; code {
		case rls.RateLimitResponse_OK:
			return http.StatusOK, nil, nil
		case rls.RateLimitResponse_OVER_LIMIT:
			return http.StatusTooManyRequests, nil, nil
		default:
			return 0, nil, fmt.Errorf("the response's code is %v", code)
		}
	case <-ctx.Done():
		return 0, nil, ctx.Err()
	}
}

// Right implements Connection.
func (c *GRPCClient) Right([]byte) bool {
	return len(c.response.Statuses) > 0 && c.response.Statuses[0].CurrentLimit != nil
}

// Close implements Connection. It ends what all are asked who share a connection
// with the first of them.
func (c *GRPCClient) Close() {
	c.Expire()
	if c.owner {
		_ = c.conn.Close() // the only error is that it is closed already
	}
}

// encoded is a codec for requests that are encoded already.
type encoded struct{}

func (encoded) Name() string                       { return "proto" }
func (encoded) Marshal(v any) ([]byte, error)      { return *v.(*[]byte), nil }
func (encoded) Unmarshal(data []byte, v any) error { return proto.Unmarshal(data, v.(proto.Message)) }
