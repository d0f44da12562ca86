package envoy

import (
	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// metadataOf returns what filters of Envoy behind this one know of a request, in the form that
// envoyproxy/ratelimit gives it: what was asked, and what the files say of the limits.
func metadataOf(r *rls.RateLimitRequest, limits *structpb.Struct) *structpb.Struct {
	asked := new(structpb.ListValue)
	for _, d := range r.GetDescriptors() {
		asked.Values = append(asked.Values, structpb.NewStructValue(describe(d)))
	}
	m := &structpb.Struct{Fields: map[string]*structpb.Value{
		"domain": structpb.NewStringValue(r.GetDomain()), "descriptors": structpb.NewListValue(asked),
	}}
	if hits := r.GetHitsAddend(); hits != 0 {
		m.Fields["hitsAddend"] = structpb.NewNumberValue(float64(hits))
	}
	if len(limits.Fields) > 0 {
		m.Fields["metadata"] = structpb.NewStructValue(limits)
	}
	return m
}

func describe(d *common.RateLimitDescriptor) *structpb.Struct {
	entries := new(structpb.ListValue)
	for _, e := range d.GetEntries() {
		entries.Values = append(entries.Values, structpb.NewStringValue(e.GetKey()+"="+e.GetValue()))
	}
	s := &structpb.Struct{Fields: map[string]*structpb.Value{"entries": structpb.NewListValue(entries)}}
	if d.GetLimit() != nil {
		s.Fields["limit"] = structpb.NewStringValue(d.GetLimit().String())
	}
	if d.GetHitsAddend() != nil {
		s.Fields["hitsAddend"] = structpb.NewNumberValue(float64(d.GetHitsAddend().GetValue()))
	}
	return s
}

// merge adds to a what only b has. It takes over what b has.
func merge(a, b *structpb.Struct) {
	for key, value := range b.GetFields() {
		has, ok := a.GetFields()[key]
		switch {
		case !ok && a.Fields == nil:
			a.Fields = map[string]*structpb.Value{key: value}
		case !ok:
			a.Fields[key] = value
		case has.GetStructValue() != nil && value.GetStructValue() != nil:
			merge(has.GetStructValue(), value.GetStructValue())
		}
	}
}
