package envoy

import (
	"context"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"weir/counters"
)

// How long a reservation may be committed.
const (
	defaultTTL = 10 * time.Minute
	leastTTL   = time.Second
	mostTTL    = 24 * time.Hour
)

// maxReserved is how many limits a reservation may have, so that its receipt isn't too long.
const maxReserved = 40

// kuadrant describes what weir serves of kuadrant.service.ratelimit.v1: two methods whose
// messages nobody publishes as a Go module. All numbers are those of Kuadrant's file.
var kuadrant = describeKuadrant()

func describeKuadrant() protoreflect.FileDescriptor {
	const name = "kuadrant.service.ratelimit.v1"
	field := func(name string, number int32, kind descriptorpb.FieldDescriptorProto_Type, of proto.Message) *descriptorpb.FieldDescriptorProto {
		f := &descriptorpb.FieldDescriptorProto{
			Name: &name, Number: &number, Type: &kind, Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(),
		}
		if of != nil {
			f.TypeName = proto.String("." + string(of.ProtoReflect().Descriptor().FullName()))
		}
		return f
	}
	const (
		text    = descriptorpb.FieldDescriptorProto_TYPE_STRING
		number  = descriptorpb.FieldDescriptorProto_TYPE_UINT64
		message = descriptorpb.FieldDescriptorProto_TYPE_MESSAGE
		truth   = descriptorpb.FieldDescriptorProto_TYPE_BOOL
	)
	descriptors := field("descriptors", 2, message, new(common.RateLimitDescriptor))
	descriptors.Label = descriptorpb.FieldDescriptorProto_LABEL_REPEATED.Enum()
	code := field("code", 1, descriptorpb.FieldDescriptorProto_TYPE_ENUM, nil)
	code.TypeName = proto.String("." + string(rls.RateLimitResponse_OK.Descriptor().FullName()))
	messages := func(of string, fields ...*descriptorpb.FieldDescriptorProto) *descriptorpb.DescriptorProto {
		return &descriptorpb.DescriptorProto{Name: &of, Field: fields}
	}
	method := func(of string) *descriptorpb.MethodDescriptorProto {
		return &descriptorpb.MethodDescriptorProto{
			Name: &of, InputType: proto.String("." + name + "." + of + "Request"), OutputType: proto.String("." + name + "." + of + "Response"),
		}
	}
	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: proto.String("kuadrantrls.proto"), Package: proto.String(name), Syntax: proto.String("proto3"),
		Dependency: []string{
			rls.File_envoy_service_ratelimit_v3_rls_proto.Path(),
			common.File_envoy_extensions_common_ratelimit_v3_ratelimit_proto.Path(),
			durationpb.File_google_protobuf_duration_proto.Path(),
		},
		MessageType: []*descriptorpb.DescriptorProto{
			messages("ReserveRequest", field("domain", 1, text, nil), descriptors, field("amount", 3, number, nil), field("ttl", 4, message, new(durationpb.Duration))),
			messages("ReserveResponse", code, field("reservation_id", 2, text, nil)),
			messages("CommitRequest", field("domain", 1, text, nil), descriptors, field("reservation_id", 3, text, nil), field("actual_amount", 4, number, nil)),
			messages("CommitResponse", field("reservation_released", 1, truth, nil)),
		},
		Service: []*descriptorpb.ServiceDescriptorProto{{
			Name: proto.String("RateLimitService"), Method: []*descriptorpb.MethodDescriptorProto{method("Reserve"), method("Commit")},
		}},
	}, protoregistry.GlobalFiles)
	if err == nil {
		err = protoregistry.GlobalFiles.RegisterFile(file) // where gRPC reflection looks
	}
	if err != nil {
		panic(err) // what is above is wrong
	}
	return file
}

// A kuadrantMessage is one that kuadrant describes.
type kuadrantMessage struct{ *dynamicpb.Message }

func newKuadrantMessage(name protoreflect.Name) kuadrantMessage {
	return kuadrantMessage{dynamicpb.NewMessage(kuadrant.Messages().ByName(name))}
}

func (m kuadrantMessage) field(name protoreflect.Name) protoreflect.FieldDescriptor {
	return m.Descriptor().Fields().ByName(name)
}

func (m kuadrantMessage) get(name protoreflect.Name) protoreflect.Value {
	return m.Get(m.field(name))
}

func (m kuadrantMessage) set(name protoreflect.Name, value any) {
	m.Set(m.field(name), protoreflect.ValueOf(value))
}

// asks returns what a request asks for, as Envoy would: for each descriptor the amount.
func (m kuadrantMessage) asks(amount uint64) (*rls.RateLimitRequest, error) {
	list := m.get("descriptors").List()
	r := &rls.RateLimitRequest{Domain: m.get("domain").String()}
	for i := range list.Len() {
		d := new(common.RateLimitDescriptor)
		data, err := proto.Marshal(list.Get(i).Message().Interface())
		if err == nil {
			err = proto.Unmarshal(data, d)
		}
		if err != nil {
			return nil, err
		}
		d.HitsAddend, d.IsNegativeHits = wrapperspb.UInt64(amount), false
		r.Descriptors = append(r.Descriptors, d)
	}
	return r, nil
}

// kuadrantService serves the methods by s.
func kuadrantService(s *Service) *grpc.ServiceDesc {
	service := kuadrant.Services().Get(0)
	d := &grpc.ServiceDesc{ServiceName: string(service.FullName()), HandlerType: (*any)(nil), Metadata: kuadrant.Path()}
	for name, answer := range map[string]func(request kuadrantMessage) (proto.Message, error){"Reserve": s.reserve, "Commit": s.commit} {
		path := "/" + d.ServiceName + "/" + name
		d.Methods = append(d.Methods, grpc.MethodDesc{MethodName: name, Handler: func(_ any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) {
			request := newKuadrantMessage(protoreflect.Name(name + "Request"))
			if err := decode(request.Message); err != nil {
				return nil, err
			}
			handle := func(ctx context.Context, _ any) (any, error) {
				if err := ctx.Err(); err != nil {
					return nil, status.FromContextError(err).Err()
				}
				return answer(request)
			}
			return intercept(ctx, request.Message, &grpc.UnaryServerInfo{Server: s, FullMethod: path}, handle)
		}})
	}
	return d
}

// reserve takes an amount of all limits of a request, or of none, and answers with a receipt.
func (s *Service) reserve(request kuadrantMessage) (proto.Message, error) {
	inForce := s.active.Load()
	q, err := inForce.reservation(request, "amount")
	if err != nil {
		return nil, err
	}
	ttl := defaultTTL
	if request.Has(request.field("ttl")) {
		m := request.get("ttl").Message()
		part := func(name protoreflect.Name) int64 { return m.Get(m.Descriptor().Fields().ByName(name)).Int() }
		ttl = (&durationpb.Duration{Seconds: part("seconds"), Nanos: int32(part("nanos"))}).AsDuration()
		ttl = min(max(leastTTL, ttl), mostTTL)
	}
	answer := newKuadrantMessage("ReserveResponse")
	r, admitted := inForce.decider.ReserveLimits(q.checks, ttl)
	s.countDenials(q, inForce.denied)
	if !admitted {
		answer.set("code", rls.RateLimitResponse_OVER_LIMIT.Number())
		return answer.Message, nil
	}
	answer.set("code", rls.RateLimitResponse_OK.Number())
	if len(r.Limits) > 0 {
		id, _ := s.key().Append(nil, &r) // maxReserved fit
		answer.set("reservation_id", string(id))
	}
	return answer.Message, nil
}

// commit settles what a request has reserved, or charges the amount if it has reserved
// nothing of these limits.
func (s *Service) commit(request kuadrantMessage) (proto.Message, error) {
	inForce := s.active.Load()
	q, err := inForce.reservation(request, "actual_amount")
	if err != nil {
		return nil, err
	}
	answer := newKuadrantMessage("CommitResponse")
	r, err := s.key().Open([]byte(request.get("reservation_id").String()))
	valid := err == nil && r.Policy == PolicyName
	released, err := inForce.decider.CommitLimits(q.checks, &r, valid, int64(request.get("actual_amount").Uint()))
	if err != nil {
		return nil, status.Error(codes.Unavailable, "the store did not say whether this was committed before; try again")
	}
	answer.set("reservation_released", released)
	return answer.Message, nil
}

// reservation finds the limits of a request.
func (c *active) reservation(request kuadrantMessage, amount protoreflect.Name) (*question, error) {
	q := new(question)
	n := request.get(amount).Uint()
	if n > counters.MaxCost {
		return q, invalid("%s is %d; at most %d are possible", amount, n, counters.MaxCost)
	}
	r, err := request.asks(n)
	if err == nil {
		err = validate(r)
	}
	if err == nil {
		err = c.question(q, r)
	}
	if n := len(q.checks); err == nil && n > maxReserved {
		err = invalid("the request has %d limits; at most %d can be reserved", n, maxReserved)
	}
	return q, err
}
