package loadgen

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
)

// callersPerConnection share a connection of gRPC.
const callersPerConnection = 64

// DialGRPC returns n callers of the rate limit service of Envoy at addr. They ask for
// a domain about one entry with that key, whose value is the client's name; an answer
// that is by no limit is an error. It doesn't wait for the connections. The end of the
// first caller of a connection ends what all of it are asked.
func DialGRPC(addr, domain, key string, n int) (callers Connections, err error) {
	request, err := proto.Marshal(&rls.RateLimitRequest{Domain: domain, Descriptors: []*common.RateLimitDescriptor{{
		Entries: []*common.RateLimitDescriptor_Entry{{Key: key, Value: ClientName(0)}},
	}}})
	if err != nil {
		return nil, err
	}
	var conn *grpc.ClientConn
	for i := range n {
		close := func() {}
		if i%callersPerConnection == 0 {
			if conn, err = grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
				return nil, err
			}
			owned := conn
			close = func() { _ = owned.Close() } // the only error is that it is closed already
		}
		callers = append(callers, newCaller(rateLimit(conn, bytes.Clone(request)), close))
	}
	return callers, nil
}

// rateLimit returns a function that sends the request for a client and reports whether its
// response says OK.
func rateLimit(conn *grpc.ClientConn, request []byte) func(context.Context, int64) (bool, error) {
	name := bytes.LastIndex(request, []byte(clientPrefix)) + len(clientPrefix)
	digits, response := request[name:name+clientDigits], new(rls.RateLimitResponse)
	return func(ctx context.Context, n int64) (bool, error) {
		putDigits(digits, n)
		err := conn.Invoke(ctx, rls.RateLimitService_ShouldRateLimit_FullMethodName, &request, response, grpc.ForceCodec(encoded{}))
		switch code := response.GetOverallCode(); {
		case err != nil:
			return false, err
		case len(response.Statuses) == 0 || response.Statuses[0].CurrentLimit == nil:
			return false, errors.New("the response is by no limit")
		case code != rls.RateLimitResponse_OK && code != rls.RateLimitResponse_OVER_LIMIT:
			return false, fmt.Errorf("the response's code is %v", code)
		default:
			return code == rls.RateLimitResponse_OK, nil
		}
	}
}

// encoded is a codec for requests that are encoded already.
type encoded struct{}

func (encoded) Name() string                       { return "proto" }
func (encoded) Marshal(v any) ([]byte, error)      { return *v.(*[]byte), nil }
func (encoded) Unmarshal(data []byte, v any) error { return proto.Unmarshal(data, v.(proto.Message)) }
