package loadgen

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// CallersPerConnection share a connection of gRPC.
const CallersPerConnection = 64

// A GRPCClient is a caller of the rate limit service of Envoy. It sends a
// prepared request and reads just enough of the responses. It is not safe for
// concurrent use, but for Expire and Close.
type GRPCClient struct {
	conn    *sharedConn
	request []byte
	digits  []byte                 // of the client's name, within request
	sent    chan grpc.ClientStream // at most one
	body    []byte
	closed  sync.Once

	mu     sync.Mutex
	ctx    context.Context // Expire ends it
	expire context.CancelFunc
}

// A sharedConn is closed by the last of its callers.
type sharedConn struct {
	*grpc.ClientConn
	callers atomic.Int64
}

// DialGRPC returns n callers of the service at addr. They ask for a domain about
// one entry with that key, whose value is the client's name. It doesn't wait for
// the connections.
func DialGRPC(addr, domain, key string, n int) ([]*GRPCClient, error) {
	var callers []*GRPCClient
	var conn *sharedConn
	for i := range n {
		if i%CallersPerConnection == 0 {
			c, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				return nil, err
			}
			conn = &sharedConn{ClientConn: c}
		}
		request, err := proto.Marshal(&rls.RateLimitRequest{Domain: domain, Descriptors: []*common.RateLimitDescriptor{{
			Entries: []*common.RateLimitDescriptor_Entry{{Key: key, Value: ClientName(0)}},
		}}})
		if err != nil {
			return nil, err
		}
		name := bytes.LastIndex(request, []byte(ClientPrefix)) + len(ClientPrefix)
		c := &GRPCClient{conn: conn, request: request, digits: request[name : name+ClientDigits], sent: make(chan grpc.ClientStream, 1)}
		c.Renew()
		conn.callers.Add(1)
		callers = append(callers, c)
	}
	return callers, nil
}

// Check is Client.Check. Its status is 200 if the response says OK, and 429 if
// it says OVER_LIMIT; its body is the response.
func (c *GRPCClient) Check(n int64) (status int, body []byte, err error) {
	if err := c.Send(n); err != nil {
		return 0, nil, err
	}
	return c.Receive()
}

// Send is Client.Send.
func (c *GRPCClient) Send(n int64) error {
	putDigits(c.digits, n)
	stream, err := c.conn.NewStream(c.context(), &grpc.StreamDesc{}, rls.RateLimitService_ShouldRateLimit_FullMethodName, grpc.ForceCodec(encoded{}))
	if err == nil {
		if err = stream.SendMsg(&c.request); err == nil {
			err = stream.CloseSend()
		}
	}
	if err == nil {
		c.sent <- stream
	}
	return err
}

// Receive is Client.Receive.
func (c *GRPCClient) Receive() (status int, body []byte, err error) {
	ctx := c.context()
	select {
	case stream := <-c.sent:
		if err := stream.RecvMsg(&c.body); err != nil {
			return 0, nil, err
		}
		status, err = statusOf(c.body)
		return status, c.body, err
	case <-ctx.Done():
		return 0, nil, ctx.Err()
	}
}

func (c *GRPCClient) context() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ctx
}

// Expire makes what waits for a response fail, until Renew.
func (c *GRPCClient) Expire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expire()
}

// Renew undoes Expire.
func (c *GRPCClient) Renew() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ctx, c.expire = context.WithCancel(context.Background())
}

// Close ends what is under way. The last caller of a connection closes it.
func (c *GRPCClient) Close() {
	c.closed.Do(func() {
		c.Expire()
		if c.conn.callers.Add(-1) == 0 {
			_ = c.conn.ClientConn.Close()
		}
	})
}

// encoded is a codec for messages that are encoded already.
type encoded struct{}

func (encoded) Name() string                  { return "proto" }
func (encoded) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }
func (encoded) Unmarshal(data []byte, v any) error {
	into := v.(*[]byte)
	*into = append((*into)[:0], data...)
	return nil
}

const (
	overallCode  protowire.Number = 1 // of a RateLimitResponse
	statuses     protowire.Number = 2
	currentLimit protowire.Number = 2 // of a status
)

var errMessage = errors.New("the response is not one of the rate limit service")

// statusOf returns the status that a RateLimitResponse has over HTTP.
func statusOf(response []byte) (int, error) {
	value, ok := field(response, overallCode)
	code, n := protowire.ConsumeVarint(value)
	switch {
	case !ok || n < 0:
		return 0, errMessage
	case code == uint64(rls.RateLimitResponse_OK):
		return http.StatusOK, nil
	case code == uint64(rls.RateLimitResponse_OVER_LIMIT):
		return http.StatusTooManyRequests, nil
	default:
		return 0, fmt.Errorf("%w: its code is %d", errMessage, code)
	}
}

// HasLimit reports whether the first status of a RateLimitResponse is by a
// limit.
func HasLimit(response []byte) bool {
	value, ok := field(response, statuses)
	if !ok {
		return false
	}
	first, n := protowire.ConsumeBytes(value)
	if n < 0 {
		return false
	}
	_, ok = field(first, currentLimit)
	return ok
}

// field returns what begins with the value of the first field with that number.
func field(message []byte, number protowire.Number) (value []byte, ok bool) {
	for len(message) > 0 {
		found, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return nil, false
		}
		if message = message[n:]; found == number {
			return message, true
		}
		if n = protowire.ConsumeFieldValue(found, kind, message); n < 0 {
			return nil, false
		}
		message = message[n:]
	}
	return nil, false
}
