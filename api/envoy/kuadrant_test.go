package envoy

import (
	"fmt"
	"math"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"weir/api/policy"
)

// raw returns a message of fields as they are on the wire, whose numbers are 1, 2 and so on:
// a text, a number, a list of messages, or a message, if there is any.
func raw(t *testing.T, fields ...any) proto.Message {
	t.Helper()
	var b []byte
	appendMessage := func(number protowire.Number, m proto.Message) {
		data, err := proto.Marshal(m)
		require.NoError(t, err)
		b = protowire.AppendBytes(protowire.AppendTag(b, number, protowire.BytesType), data)
	}
	for i, field := range fields {
		number := protowire.Number(i + 1)
		switch v := field.(type) {
		case string:
			b = protowire.AppendString(protowire.AppendTag(b, number, protowire.BytesType), v)
		case int:
			b = protowire.AppendVarint(protowire.AppendTag(b, number, protowire.VarintType), uint64(v))
		case []*common.RateLimitDescriptor:
			for _, d := range v {
				appendMessage(number, d)
			}
		case proto.Message:
			appendMessage(number, v)
		}
	}
	m := new(emptypb.Empty)
	m.ProtoReflect().SetUnknown(b)
	return m
}

// call returns an answer as its fields on the wire.
func (f *fixture) call(t *testing.T, method string, request proto.Message) (map[protowire.Number]any, error) {
	t.Helper()
	answer := new(emptypb.Empty)
	err := f.conn.Invoke(t.Context(), "/kuadrant.service.ratelimit.v1.RateLimitService/"+method, request, answer)
	fields := make(map[protowire.Number]any)
	for b := answer.ProtoReflect().GetUnknown(); len(b) > 0; {
		number, kind, n := protowire.ConsumeTag(b)
		b = b[n:]
		if kind == protowire.BytesType {
			v, n := protowire.ConsumeString(b)
			fields[number], b = v, b[n:]
		} else {
			v, n := protowire.ConsumeVarint(b)
			fields[number], b = v, b[n:]
		}
	}
	return fields, err
}

func (f *fixture) reserve(t *testing.T, amount int, ttl time.Duration, descriptors ...*common.RateLimitDescriptor) (code uint64, id string) {
	t.Helper()
	answer, err := f.call(t, "Reserve", raw(t, "d", descriptors, amount, durationpb.New(ttl)))
	require.NoError(t, err)
	code, _ = answer[1].(uint64)
	id, _ = answer[2].(string)
	return code, id
}

func (f *fixture) commit(t *testing.T, id string, amount int, descriptors ...*common.RateLimitDescriptor) (released bool) {
	t.Helper()
	answer, err := f.call(t, "Commit", raw(t, "d", descriptors, id, amount))
	require.NoError(t, err)
	return answer[1] == uint64(1)
}

// at sets the clock to d after epoch.
func (f *fixture) at(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.time = epoch.Add(d)
}

// remains returns what remains to a descriptor.
func (f *fixture) remains(t *testing.T, d *common.RateLimitDescriptor) uint32 {
	t.Helper()
	look := proto.Clone(d).(*common.RateLimitDescriptor)
	look.HitsAddend = wrapperspb.UInt64(0)
	return f.ask(t, look).Statuses[0].LimitRemaining
}

const (
	reservedOK, reservedOver = 1, 2 // of envoy's RateLimitResponse.Code
)

func TestKuadrantReservesAndCommits(t *testing.T) {
	t.Parallel()
	for _, algorithm := range []string{"", "sliding_window", "token_bucket", "leaky_bucket", "sliding_log", "counting log"} {
		t.Run(algorithm, func(t *testing.T) {
			t.Parallel()
			tokens, users := limited("tokens", "", 100), limited("user", "", 1000)
			tokens.Rule.Limit.Algorithm = algorithm
			f := serve(t, Off, false, tokens, users)
			of := []*common.RateLimitDescriptor{entries("tokens", "a"), entries("user", "u"), entries("unknown", "x")}
			requireRemains := func(least, user uint32) {
				t.Helper()
				require.Equal(t, least, f.remains(t, of[0]))
				require.Equal(t, user, f.remains(t, of[1]))
			}
			code, less := f.reserve(t, 60, time.Minute, of...)
			require.EqualValues(t, reservedOK, code)
			requireRemains(40, 940)
			code, none := f.reserve(t, 41, time.Minute, of...)
			require.EqualValues(t, reservedOver, code)
			require.Empty(t, none)
			requireRemains(40, 940)
			require.True(t, f.commit(t, less, 18, of...))
			requireRemains(82, 982)
			require.False(t, f.commit(t, less, 18, of...), "only once")
			requireRemains(82, 982)

			_, more := f.reserve(t, 10, time.Minute, of...)
			require.True(t, f.commit(t, more, 30, of...))
			requireRemains(52, 952)

			// What was reserved for others, or never, is no reservation of these: the amount counts.
			_, other := f.reserve(t, 5, time.Minute, entries("tokens", "b"), entries("user", "v"))
			require.False(t, f.commit(t, other, 2, of...))
			requireRemains(50, 950)
			require.False(t, f.commit(t, "", 3, of...))
			require.False(t, f.commit(t, other+"x", 7, of...))
			requireRemains(40, 940)
			require.True(t, f.commit(t, other, 0, entries("tokens", "b"), entries("user", "v")), "it still has its own")
		})
	}
}

// The most limits that can be reserved fit into an id, with large amounts too.
func TestKuadrantReservesManyLimits(t *testing.T) {
	t.Parallel()
	f := serve(t, Off, false, limited("tokens", "", math.MaxUint32))
	var many []*common.RateLimitDescriptor
	for i := range maxReserved {
		many = append(many, entries("tokens", fmt.Sprint(i)))
	}
	const most = 1_000_000_000
	code, id := f.reserve(t, most, time.Minute, many...)
	require.EqualValues(t, reservedOK, code)
	require.NotEmpty(t, id)
	require.True(t, f.commit(t, id, 1, many...))
	for _, d := range many {
		require.EqualValues(t, math.MaxUint32-1, f.remains(t, d))
	}
	_, err := f.call(t, "Reserve", raw(t, "d", append(many, entries("tokens", "x")), 1))
	assert.Equal(t, codes.InvalidArgument, status.Code(err))
}

// What is committed too late stays as it was reserved.
func TestKuadrantCommitsInTime(t *testing.T) {
	t.Parallel()
	f := serve(t, Off, false, &Descriptor{Key: "tokens", Rule: &Rule{Unit: "hour", Limit: policy.Limit{Name: "tokens", Limit: 100}}})
	d := entries("tokens", "a")
	_, id := f.reserve(t, 30, 5*time.Second, d)
	_, late := f.reserve(t, 30, 5*time.Second, d)
	f.at(5 * time.Second)
	require.True(t, f.commit(t, id, 10, d))
	f.at(6*time.Second + 1)
	require.False(t, f.commit(t, late, 10, d))
	assert.EqualValues(t, 60, f.remains(t, d))
}

// A reservation of places ends with its commit.
func TestKuadrantReservesPlaces(t *testing.T) {
	t.Parallel()
	places := limited("places", "", 2)
	places.Rule.Limit.Algorithm = "concurrency"
	f := serve(t, Off, false, places)
	d := entries("places", "a")
	_, id := f.reserve(t, 2, time.Minute, d)
	code, _ := f.reserve(t, 1, time.Minute, d)
	require.EqualValues(t, reservedOver, code)
	require.True(t, f.commit(t, id, 0, d))
	code, _ = f.reserve(t, 1, time.Minute, d)
	require.EqualValues(t, reservedOK, code)
}

func TestKuadrantRefusesWrongRequests(t *testing.T) {
	t.Parallel()
	f := serve(t, Off, false, limited("tokens", "", 100))
	d := []*common.RateLimitDescriptor{entries("tokens", "a")}
	for _, wrong := range []proto.Message{raw(t, "", d, 1), raw(t, "d"), raw(t, "d", d, 1_000_000_001), raw(t, "d", d, -1)} {
		_, err := f.call(t, "Reserve", wrong)
		assert.Equal(t, codes.InvalidArgument, status.Code(err), protojson.Format(wrong))
	}
	_, err := f.call(t, "Reserve", raw(t, "d", d, 1_000_000_001))
	assert.ErrorContains(t, err, "amount is 1000000001; at most 1000000000 are possible")
	_, err = f.call(t, "Commit", raw(t, "d", d, "", 1_000_000_001))
	assert.ErrorContains(t, err, "actual_amount is 1000000001; at most 1000000000 are possible")
	_, err = f.call(t, "Report", raw(t, "d", d))
	assert.Equal(t, codes.Unimplemented, status.Code(err))
	assert.EqualValues(t, 100, f.remains(t, d[0]))
}

// A reservation that is denied reserves nothing, also where denied requests count.
func TestADeniedReservationCountsNothing(t *testing.T) {
	t.Parallel()
	f := serve(t, Off, true, limited("user", "", 10), limited("wide", "", 100))
	both := []*common.RateLimitDescriptor{entries("user", "a"), entries("wide", "a")}
	code, id := f.reserve(t, 8, time.Minute, both...)
	require.EqualValues(t, ok, code)
	for range 3 {
		code, _ = f.reserve(t, 5, time.Minute, both...)
		assert.EqualValues(t, over, code)
	}
	look := func() (left []uint32) {
		for _, d := range both {
			d.HitsAddend = wrapperspb.UInt64(0)
		}
		for _, s := range f.ask(t, both...).Statuses {
			left = append(left, s.LimitRemaining)
		}
		return left
	}
	assert.Equal(t, []uint32{2, 92}, look())
	assert.True(t, f.commit(t, id, 3, both...))
	assert.Equal(t, []uint32{7, 97}, look())
}

// A quota that denies what another admits counts it where denied requests count: a commit puts the
// actual amount in its place there, too.
func TestACommitSettlesWhatAQuotaHasDenied(t *testing.T) {
	t.Parallel()
	narrow, wide, banned := limited("narrow", "", 10), limited("wide", "", 100), limited("banned", "", 0)
	for _, d := range []*Descriptor{narrow, wide, banned} {
		d.Rule.Limit.Leniency = policy.Quota
	}
	f := serve(t, Off, true, narrow, wide, banned)
	all := []*common.RateLimitDescriptor{entries("narrow", "a"), entries("wide", "a"), entries("banned", "a")}
	_, first := f.reserve(t, 8, time.Minute, all...)
	code, second := f.reserve(t, 5, time.Minute, all...)
	require.EqualValues(t, reservedOK, code)
	assert.EqualValues(t, 0, f.remains(t, all[0]))
	require.True(t, f.commit(t, second, 1, all...))
	assert.EqualValues(t, 1, f.remains(t, all[0]))
	assert.EqualValues(t, 91, f.remains(t, all[1]))
	require.True(t, f.commit(t, first, 9, all...))
	assert.EqualValues(t, 0, f.remains(t, all[0]))
	assert.EqualValues(t, 90, f.remains(t, all[1]))
}
