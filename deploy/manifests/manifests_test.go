// Package manifests checks the files in deploy that other programs read, with
// those programs' own types: unknown fields, wrong types and names that lead
// nowhere fail. It is a module of its own, so that weir doesn't depend on them.
package manifests

import (
	"bytes"
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/loader"
	compose "github.com/compose-spec/compose-go/v2/types"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

func read(t *testing.T, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	return data
}

// decode decodes YAML strictly: unknown and repeated fields fail, and the case
// of names counts.
func decode(t *testing.T, data []byte, into any) {
	t.Helper()
	asJSON, err := yaml.YAMLToJSONStrict(data)
	require.NoError(t, err)
	strict, err := json.UnmarshalStrict(asJSON, into, json.DisallowUnknownFields, json.DisallowDuplicateFields)
	require.NoError(t, err)
	require.Empty(t, strict, "%s", data)
}

// cluster is what a file for Kubernetes makes, by name.
type cluster struct {
	configs      map[string]*core.ConfigMap
	services     map[string]*core.Service
	deployments  map[string]*apps.Deployment
	statefulSets map[string]*apps.StatefulSet
	budgets      map[string]*policy.PodDisruptionBudget
}

func readCluster(t *testing.T, file string) cluster {
	t.Helper()
	c := cluster{
		make(map[string]*core.ConfigMap), make(map[string]*core.Service), make(map[string]*apps.Deployment),
		make(map[string]*apps.StatefulSet), make(map[string]*policy.PodDisruptionBudget),
	}
	for _, document := range bytes.Split(read(t, file), []byte("\n---\n")) {
		var kind meta.TypeMeta
		require.NoError(t, yaml.Unmarshal(document, &kind))
		switch kind.APIVersion + " " + kind.Kind {
		case "v1 ConfigMap":
			add(t, c.configs, document)
		case "v1 Service":
			add(t, c.services, document)
		case "apps/v1 Deployment":
			add(t, c.deployments, document)
		case "apps/v1 StatefulSet":
			add(t, c.statefulSets, document)
		case "policy/v1 PodDisruptionBudget":
			add(t, c.budgets, document)
		default:
			require.Fail(t, "unknown kind", "%s", document)
		}
	}
	return c
}

// add decodes an object and adds it by its name, which must be a legal one.
func add[T any, P interface {
	*T
	GetName() string
	GetNamespace() string
}](t *testing.T, to map[string]P, document []byte) {
	t.Helper()
	object := P(new(T))
	decode(t, document, object)
	require.Empty(t, validation.IsDNS1035Label(object.GetName()))
	require.Empty(t, object.GetNamespace(), "it goes where it is applied")
	require.NotContains(t, to, object.GetName())
	to[object.GetName()] = object
}

func TestKubernetesObjectsFindEachOther(t *testing.T) {
	t.Parallel()
	c := readCluster(t, "../kubernetes.yaml")
	weir, memcached := c.deployments["weir"], c.statefulSets["memcached"]
	require.NotNil(t, weir)
	require.NotNil(t, memcached)
	templates := map[string]core.PodTemplateSpec{"weir": weir.Spec.Template, "memcached": memcached.Spec.Template}
	selects := func(selector *meta.LabelSelector, of string) {
		t.Helper()
		s, err := meta.LabelSelectorAsSelector(selector)
		require.NoError(t, err)
		for name, template := range templates {
			assert.Equal(t, name == of, s.Matches(labels.Set(template.Labels)), "%s by %s", name, s)
		}
	}
	selects(weir.Spec.Selector, "weir")
	selects(memcached.Spec.Selector, "memcached")
	require.Len(t, c.services, 2)
	require.Len(t, c.budgets, 2)
	for name, service := range c.services {
		selects(&meta.LabelSelector{MatchLabels: service.Spec.Selector}, name)
		require.Len(t, service.Spec.Ports, 1)
		assert.Equal(t, portNamed(templates[name], service.Spec.Ports[0].TargetPort.StrVal), service.Spec.Ports[0].Port)
	}
	for name, budget := range c.budgets {
		selects(budget.Spec.Selector, name)
		assert.EqualValues(t, 1, budget.Spec.MaxUnavailable.IntValue())
	}
	assert.GreaterOrEqual(t, memcached.Spec.MinReadySeconds, int32(40), "a look-up's interval, and the TTL of name servers")
	assert.Equal(t, memcached.Spec.ServiceName, c.services["memcached"].Name)
	assert.Equal(t, core.ClusterIPNone, c.services["memcached"].Spec.ClusterIP)
	assert.True(t, c.services["memcached"].Spec.PublishNotReadyAddresses)

	for name, template := range templates {
		for _, spread := range template.Spec.TopologySpreadConstraints {
			selects(spread.LabelSelector, name)
		}
		require.Len(t, template.Spec.Containers, 1)
		container := template.Spec.Containers[0]
		_, version, _ := strings.Cut(container.Image, ":")
		assert.Regexp(t, `^\d+\.\d+\.\d+$`, version, container.Image)
		for _, probe := range []*core.Probe{container.LivenessProbe, container.ReadinessProbe} {
			switch {
			case probe == nil:
			case probe.HTTPGet != nil:
				assert.NotZero(t, portNamed(template, probe.HTTPGet.Port.StrVal))
			default:
				assert.NotZero(t, portNamed(template, probe.TCPSocket.Port.StrVal))
			}
		}
		for _, mount := range container.VolumeMounts {
			i := slices.IndexFunc(template.Spec.Volumes, func(v core.Volume) bool { return v.Name == mount.Name })
			require.GreaterOrEqual(t, i, 0, mount.Name)
			assert.Contains(t, c.configs, template.Spec.Volumes[i].ConfigMap.Name)
		}
		// What the restricted level of Kubernetes' pod security asks for.
		assert.True(t, *template.Spec.SecurityContext.RunAsNonRoot)
		assert.Equal(t, core.SeccompProfileTypeRuntimeDefault, template.Spec.SecurityContext.SeccompProfile.Type)
		assert.False(t, *container.SecurityContext.AllowPrivilegeEscalation)
		assert.Equal(t, []core.Capability{"ALL"}, container.SecurityContext.Capabilities.Drop)
		assert.Positive(t, container.Resources.Limits.Memory().Value())
	}
}

// portNamed returns the number of a pod's port, or 0.
func portNamed(template core.PodTemplateSpec, name string) int32 {
	for _, port := range template.Spec.Containers[0].Ports {
		if port.Name == name {
			return port.ContainerPort
		}
	}
	return 0
}

func TestKubernetesRunsWeir(t *testing.T) {
	t.Parallel()
	c := readCluster(t, "../kubernetes.yaml")
	pod := c.deployments["weir"].Spec.Template.Spec
	variables := make(map[string]string)
	for _, v := range pod.Containers[0].Env {
		variables[v.Name] = v.Value
	}
	file := filepath.Join(pod.Containers[0].VolumeMounts[0].MountPath, "policies.yaml")
	assert.Equal(t, file, variables["WEIR_CONFIG"])
	service := c.services["memcached"]
	assert.Equal(t, "dnssrv+_"+service.Spec.Ports[0].Name+"._tcp."+service.Name, variables["WEIR_MEMCACHED"])
	// Else the service named weir would give it WEIR_PORT and the like.
	assert.False(t, *pod.EnableServiceLinks)
	assert.Equal(t, "/healthz", pod.Containers[0].LivenessProbe.HTTPGet.Path)
	// Not /readyz: no instance would be ready while Memcached is down.
	assert.Equal(t, "/healthz", pod.Containers[0].ReadinessProbe.HTTPGet.Path)
	preStop := pod.Containers[0].Lifecycle.PreStop.Sleep.Seconds
	assert.GreaterOrEqual(t, *pod.TerminationGracePeriodSeconds, preStop+20, "-shutdown-grace and what comes after it")

	// Who is trusted may say that anybody asks: that is the ingress, and neither
	// all pods nor all nodes.
	for _, network := range strings.Split(variables["WEIR_TRUSTED_PROXIES"], ",") {
		prefix, err := netip.ParsePrefix(network)
		require.NoError(t, err)
		assert.True(t, prefix.IsSingleIP(), network)
	}

	// The policy api is the same wherever it is shown.
	type policies struct {
		Policies map[string]any `json:"policies"`
	}
	var shown, shipped policies
	decode(t, []byte(c.configs["weir"].Data["policies.yaml"]), &shown)
	decode(t, read(t, "../policies.yaml"), &shipped)
	assert.Equal(t, shipped.Policies["api"], shown.Policies["api"])
}

// The example for Envoy differs from the other in what weir serves, and in nothing else.
func TestKubernetesRunsWeirForEnvoy(t *testing.T) {
	t.Parallel()
	of, c := readCluster(t, "../kubernetes.yaml"), readCluster(t, "../envoy/kubernetes.yaml")
	weir, other := c.deployments["weir"], of.deployments["weir"]
	assert.EqualValues(t, 2, *weir.Spec.Replicas)
	pod := weir.Spec.Template.Spec
	container := &pod.Containers[0]
	variables := make(map[string]string)
	for _, v := range container.Env {
		variables[v.Name] = v.Value
	}
	assert.Equal(t, map[string]string{
		"WEIR_GRPC_LISTEN": ":8081", "WEIR_ENVOY_CONFIG": container.VolumeMounts[0].MountPath,
		"WEIR_MEMCACHED": "dnssrv+_memcached._tcp.memcached", "WEIR_GRPC_MAX_CONNECTION_AGE": "5m",
	}, variables)
	assert.Equal(t, "weir", pod.Volumes[0].ConfigMap.Name)
	assert.Equal(t, container.VolumeMounts[0].Name, pod.Volumes[0].Name)
	assert.Equal(t, portNamed(weir.Spec.Template, "grpc"), container.ReadinessProbe.GRPC.Port)
	assert.Equal(t, "ratelimit", *container.ReadinessProbe.GRPC.Service)
	for _, port := range c.services["weir"].Spec.Ports { // 8081 is what istio.yaml asks
		assert.Equal(t, map[string]int32{"http": 8080, "grpc": 8081}[port.Name], port.Port)
		assert.Equal(t, port.Port, portNamed(weir.Spec.Template, port.TargetPort.StrVal))
	}

	same := &other.Spec.Template.Spec.Containers[0]
	container.Env, container.Ports, container.VolumeMounts, container.ReadinessProbe = same.Env, same.Ports, same.VolumeMounts, same.ReadinessProbe
	pod.Volumes, weir.Spec.Replicas = other.Spec.Template.Spec.Volumes, other.Spec.Replicas
	weir.Spec.Template.Spec = pod
	assert.Equal(t, other, weir)
	assert.Equal(t, of.budgets["weir"], c.budgets["weir"])
	assert.Equal(t, of.services["weir"].Spec.Selector, c.services["weir"].Spec.Selector)

	// The limits are those of the other examples.
	var shown, shipped any
	decode(t, []byte(c.configs["weir"].Data["limits.yaml"]), &shown)
	decode(t, read(t, "../envoy/limits.yaml"), &shipped)
	assert.Equal(t, shipped, shown)
}

func TestCompose(t *testing.T) {
	t.Parallel()
	project, err := loader.LoadWithContext(context.Background(), compose.ConfigDetails{
		WorkingDir:  "../..",
		ConfigFiles: []compose.ConfigFile{{Filename: "../../docker-compose.yml"}},
		Environment: compose.Mapping{"VERSION": "1.2.3"},
	}, func(o *loader.Options) { o.SetProjectName("weir", true) })
	require.NoError(t, err)
	assert.ElementsMatch(t, []string{"memcached-1", "memcached-2", "weir-1", "weir-2", "prometheus", "grafana"}, project.ServiceNames())

	ports := make(map[string]bool)
	for name, service := range project.Services {
		if service.Build == nil {
			_, version, _ := strings.Cut(service.Image, ":")
			assert.Regexp(t, `^v?\d+\.\d+\.\d+$`, version, service.Image)
		} else {
			assert.Equal(t, "1.2.3", *service.Build.Args["VERSION"])
		}
		for _, volume := range service.Volumes {
			_, err := os.Stat(volume.Source)
			require.NoError(t, err, name)
			assert.True(t, volume.ReadOnly, name)
		}
		for _, port := range service.Ports {
			assert.False(t, ports[port.Published], "%s: port %s twice", name, port.Published)
			ports[port.Published] = true
		}
	}

	weir := project.Services["weir-1"]
	assert.GreaterOrEqual(t, time.Duration(*weir.StopGracePeriod), 20*time.Second, "-shutdown-grace and what comes after it")

	// What weir, Prometheus and Grafana are told to read is mounted.
	assert.FileExists(t, mounted(weir, *weir.Environment["WEIR_CONFIG"]))
	prometheus := project.Services["prometheus"]
	var config struct {
		Global        map[string]string `json:"global"`
		RuleFiles     []string          `json:"rule_files"`
		ScrapeConfigs []struct {
			JobName       string `json:"job_name"`
			StaticConfigs []struct {
				Targets []string `json:"targets"`
			} `json:"static_configs"`
		} `json:"scrape_configs"`
	}
	decode(t, read(t, mounted(prometheus, "/etc/prometheus/prometheus.yml")), &config)
	for _, rules := range config.RuleFiles {
		assert.FileExists(t, mounted(prometheus, "/etc/prometheus/"+rules))
	}
	for _, target := range config.ScrapeConfigs[0].StaticConfigs[0].Targets {
		host, _, _ := strings.Cut(target, ":")
		assert.Contains(t, project.Services, host)
	}

	grafana := project.Services["grafana"]
	var sources struct {
		APIVersion  int `json:"apiVersion"`
		Datasources []struct {
			Name, Type, UID, URL string
			IsDefault            bool `json:"isDefault"`
		} `json:"datasources"`
	}
	require.NoError(t, yaml.Unmarshal([]byte(project.Configs["datasource"].Content), &sources))
	assert.Equal(t, "http://prometheus:9090", sources.Datasources[0].URL)
	var dashboards struct {
		APIVersion int `json:"apiVersion"`
		Providers  []struct {
			Name    string                `json:"name"`
			Type    string                `json:"type"`
			Options struct{ Path string } `json:"options"`
		} `json:"providers"`
	}
	require.NoError(t, yaml.Unmarshal([]byte(project.Configs["dashboards"].Content), &dashboards))
	home := *grafana.Environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
	assert.Equal(t, dashboards.Providers[0].Options.Path, filepath.Dir(home))
	assert.FileExists(t, mounted(grafana, home))
	for _, config := range grafana.Configs {
		assert.Contains(t, project.Configs, config.Source)
		assert.True(t, strings.HasPrefix(config.Target, "/etc/grafana/provisioning/"))
	}
}

// mounted returns where the file is that a service sees at path.
func mounted(service compose.ServiceConfig, path string) string {
	for _, volume := range service.Volumes {
		if path == volume.Target || strings.HasPrefix(path, volume.Target+"/") {
			return filepath.Join(volume.Source, strings.TrimPrefix(path, volume.Target))
		}
	}
	return path + ", which isn't mounted"
}
