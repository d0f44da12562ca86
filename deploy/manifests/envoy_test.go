package manifests

import (
	"encoding/json"
	"testing"

	bootstrap "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_authz/v3" // types that the files name
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcm "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	"sigs.k8s.io/yaml"
)

// validate checks a message and all that it packs, and returns their names.
func validate(t *testing.T, m proto.Message) (seen []string) {
	t.Helper()
	seen = append(seen, string(m.ProtoReflect().Descriptor().Name()))
	require.NoError(t, m.(interface{ ValidateAll() error }).ValidateAll())
	// It doesn't look into messages of any type.
	require.NoError(t, protorange.Range(m.ProtoReflect(), func(path protopath.Values) error {
		message, _ := path.Index(-1).Value.Interface().(protoreflect.Message)
		if message == nil {
			return nil
		}
		packed, ok := message.Interface().(*anypb.Any)
		if !ok {
			return nil
		}
		inner, err := packed.UnmarshalNew()
		require.NoError(t, err)
		seen = append(seen, validate(t, inner)...)
		return protorange.Break
	}))
	return seen
}

func TestEnvoyTakesItsFiles(t *testing.T) {
	t.Parallel()
	for file, want := range map[string][]string{
		"../envoy.yaml":           {"Bootstrap", "HttpConnectionManager", "ExtAuthz", "Router"},
		"../envoy/bootstrap.yaml": {"Bootstrap", "HttpConnectionManager", "RateLimit", "Router", "HttpProtocolOptions"},
	} {
		asJSON, err := yaml.YAMLToJSONStrict(read(t, file))
		require.NoError(t, err)
		var config bootstrap.Bootstrap
		require.NoError(t, protojson.Unmarshal(asJSON, &config), file)
		assert.ElementsMatch(t, want, validate(t, &config), file)
	}
}

// What the EnvoyFilter patches in are messages of Envoy.
func TestEnvoyTakesWhatIstioPatchesIn(t *testing.T) {
	t.Parallel()
	var filter struct {
		Spec struct {
			ConfigPatches []struct {
				ApplyTo string
				Patch   struct{ Value json.RawMessage }
			}
		}
	}
	require.NoError(t, yaml.Unmarshal(read(t, "../envoy/istio.yaml"), &filter))
	patches := filter.Spec.ConfigPatches
	require.Len(t, patches, 2)
	var own hcm.HttpFilter
	require.NoError(t, protojson.Unmarshal(patches[0].Patch.Value, &own))
	assert.Equal(t, []string{"HttpFilter", "RateLimit"}, validate(t, &own))
	var host route.VirtualHost
	require.NoError(t, protojson.Unmarshal(patches[1].Patch.Value, &host))
	host.Name, host.Domains = "app", []string{"*"} // the gateway's
	assert.Equal(t, []string{"VirtualHost"}, validate(t, &host))
}
