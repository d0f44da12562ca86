package e2e

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/credentials/insecure"
)

// A step of an example asks about descriptors once more.
type exampleStep struct {
	ask       []*common.RateLimitDescriptor
	hits      uint32
	over      bool
	remaining []int64 // of each; -1 for no limit
}

func asks(descriptors ...*common.RateLimitDescriptor) []*common.RateLimitDescriptor {
	return descriptors
}

// What the documentation of envoyproxy/ratelimit shows, in other words and with
// longer units, decides as it says.
func TestEnvoyDocumentation(t *testing.T) {
	t.Parallel()
	d := descriptor
	examples := map[string]struct {
		file  string
		steps []exampleStep
	}{
		"values with limits of their own": {`
  - {key: table, value: accounts, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: table, value: other, rate_limit: {unit: year, requests_per_unit: 3}}`,
			[]exampleStep{
				{ask: asks(d("table", "accounts")), remaining: []int64{1}},
				{ask: asks(d("table", "other")), remaining: []int64{2}},
				{ask: asks(d("table", "unheard-of")), remaining: []int64{-1}},
			}},
		"nested, and any value": {`
  - key: kind
    value: advert
    descriptors:
      - {key: phone, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: phone, rate_limit: {unit: year, requests_per_unit: 5}}`,
			[]exampleStep{
				{ask: asks(d("kind", "advert", "phone", "1"), d("phone", "1")), remaining: []int64{1, 4}},
				{ask: asks(d("kind", "advert", "phone", "1"), d("phone", "1")), remaining: []int64{0, 3}},
				{ask: asks(d("kind", "advert", "phone", "1"), d("phone", "1")), over: true, remaining: []int64{0, 2}},
				{ask: asks(d("kind", "advert", "phone", "2"), d("phone", "2")), remaining: []int64{1, 4}},
				{ask: asks(d("kind", "bill", "phone", "1")), remaining: []int64{-1}},
			}},
		"a value is banned": {`
  - {key: address, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: address, value: 198.51.100.7, rate_limit: {unit: year, requests_per_unit: 0}}`,
			[]exampleStep{
				{ask: asks(d("address", "198.51.100.7")), over: true, remaining: []int64{0}},
				{ask: asks(d("address", "198.51.100.8")), remaining: []int64{1}},
			}},
		"as deep as the file": {`
  - {key: k, value: v, rate_limit: {unit: year, requests_per_unit: 2}}
  - key: deep
    value: v
    descriptors: [{key: sub, rate_limit: {unit: year, requests_per_unit: 2}}]`,
			[]exampleStep{
				{ask: asks(d("k", "v", "sub", "s")), remaining: []int64{-1}},
				{ask: asks(d("deep", "v", "sub", "s")), remaining: []int64{1}},
				{ask: asks(d("deep", "v")), remaining: []int64{-1}},
			}},
		"unlimited": {`
  - {key: internal, rate_limit: {unlimited: true}}`,
			[]exampleStep{{ask: asks(d("internal", "x")), remaining: []int64{math.MaxUint32}}}},
		"shadow mode of one value": {`
  - key: service
    descriptors:
      - {key: user, value: one, rate_limit: {unit: year, requests_per_unit: 1}, shadow_mode: true}
      - {key: user, value: two, rate_limit: {unit: year, requests_per_unit: 1}}`,
			[]exampleStep{
				{ask: asks(d("service", "s", "user", "one")), remaining: []int64{0}},
				{ask: asks(d("service", "s", "user", "one")), remaining: []int64{0}},
				{ask: asks(d("service", "s", "user", "two")), remaining: []int64{0}},
				{ask: asks(d("service", "s", "user", "two")), over: true, remaining: []int64{0}},
			}},
		"replaces": {`
  - key: read
    descriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 5, name: usual}}]
  - key: export
    descriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 10, replaces: [{name: usual}]}}]`,
			[]exampleStep{
				{ask: asks(d("read", "", "user", "u"), d("export", "", "user", "u")), remaining: []int64{-1, 9}},
				{ask: asks(d("read", "", "user", "u")), remaining: []int64{4}},
			}},
		"wildcards at the end, inside, and the first of two": {`
  - {key: end, value: abc*, rate_limit: {unit: year, requests_per_unit: 5}}
  - {key: inside, value: /v/*/run, rate_limit: {unit: year, requests_per_unit: 6}}
  - {key: inside, value: /v/*, rate_limit: {unit: year, requests_per_unit: 7}}
  - {key: several, value: /a/*/b/*/c, rate_limit: {unit: year, requests_per_unit: 8}}`,
			[]exampleStep{
				{ask: asks(d("end", "abc"), d("end", "abcd"), d("end", "ab")), remaining: []int64{4, 4, -1}},
				{ask: asks(d("inside", "/v/7/run"), d("inside", "/v/7/stop")), remaining: []int64{5, 6}},
				{ask: asks(d("several", "/a/1/b/2/c"), d("several", "/a/1/c")), remaining: []int64{7, -1}},
			}},
		"a threshold that values share": {`
  - {key: f, value: f/*, share_threshold: true, rate_limit: {unit: year, requests_per_unit: 10}}
  - {key: g, value: g/*, rate_limit: {unit: year, requests_per_unit: 10}}`,
			[]exampleStep{
				{ask: asks(d("f", "f/a")), hits: 5, remaining: []int64{5}},
				{ask: asks(d("f", "f/b")), hits: 5, remaining: []int64{0}},
				{ask: asks(d("f", "f/c")), over: true, remaining: []int64{0}},
				{ask: asks(d("g", "g/a")), hits: 10, remaining: []int64{0}},
				{ask: asks(d("g", "g/b")), remaining: []int64{9}},
			}},
	}
	dir, i := t.TempDir(), 0
	domains := map[string]string{}
	for name, example := range examples {
		i++
		domains[name] = "example-" + strconv.Itoa(i)
		file := "domain: " + domains[name] + "\ndescriptors:" + example.file + "\n"
		require.NoError(t, os.WriteFile(filepath.Join(dir, domains[name]+".yaml"), []byte(file), 0o600))
	}
	p := startProcess(t, "-grpc-listen", "127.0.0.1:0", "-envoy-config", dir)
	c := dialGRPC(t, p.log, insecure.NewCredentials())
	for name, example := range examples {
		for i, step := range example.steps {
			r, err := c.ShouldRateLimit(context.Background(),
				&rls.RateLimitRequest{Domain: domains[name], Descriptors: step.ask, HitsAddend: step.hits})
			require.NoError(t, err)
			assert.Equal(t, step.over, r.OverallCode == rls.RateLimitResponse_OVER_LIMIT, "%s, step %d", name, i)
			for j, status := range r.Statuses {
				remaining := int64(status.LimitRemaining)
				if status.CurrentLimit == nil && remaining == 0 {
					remaining = -1
				}
				assert.Equal(t, step.remaining[j], remaining, "%s, step %d, descriptor %d", name, i, j)
			}
		}
	}
}
