package manifests

import (
	"testing"

	bootstrap "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_authz/v3" // types that the file names
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
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

func TestEnvoyTakesItsFile(t *testing.T) {
	t.Parallel()
	asJSON, err := yaml.YAMLToJSONStrict(read(t, "../envoy.yaml"))
	require.NoError(t, err)
	var file bootstrap.Bootstrap
	require.NoError(t, protojson.Unmarshal(asJSON, &file))
	var seen []string
	var validate func(proto.Message)
	validate = func(m proto.Message) {
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
			validate(inner)
			return protorange.Break
		}))
	}
	validate(&file)
	assert.Equal(t, []string{"Bootstrap", "HttpConnectionManager", "ExtAuthz", "Router"}, seen)
}
