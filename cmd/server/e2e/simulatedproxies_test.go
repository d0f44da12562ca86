package e2e

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// Traefik and Envoy are no packages of Debian. Here stand-ins read their files,
// take nothing that they don't know, and ask weir as the documentation of
// Traefik and Envoy says that these do.

// decodeFile reads a YAML file of deploy; fields that the value doesn't have
// are errors.
func decodeFile(t *testing.T, file string, into any, edits ...edit) {
	t.Helper()
	data, err := os.ReadFile(edited(t, t.TempDir(), file, edits...))
	require.NoError(t, err)
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	decoder.KnownFields(true)
	require.NoError(t, decoder.Decode(into))
}

// serveProxy serves a stand-in in front of the app. ask returns the headers of
// an admitted request's answer, or else answers the request.
func serveProxy(t *testing.T, app string, ask func(http.ResponseWriter, *http.Request) (admitted http.Header)) (address string) {
	t.Helper()
	forward := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: app})
	transport := &http.Transport{}
	forward.Transport = transport
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if answer := ask(w, r); answer != nil {
			for name, values := range answer {
				w.Header()[name] = values
			}
			forward.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(func() {
		server.Close()
		transport.CloseIdleConnections()
	})
	return strings.TrimPrefix(server.URL, "http://")
}

// send returns the answer to a request of a stand-in, with its body read.
func send(client *http.Client, r *http.Request) (*http.Response, []byte, error) {
	resp, err := client.Do(r)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp, body, err
}

// traefikFile is a dynamic configuration with the forwardAuth middleware.
type traefikFile struct {
	HTTP struct {
		Routers map[string]struct {
			Rule        string
			Middlewares []string
			Service     string
		}
		Middlewares map[string]struct {
			ForwardAuth struct {
				Address             string
				TrustForwardHeader  bool     `yaml:"trustForwardHeader"`
				AuthRequestHeaders  []string `yaml:"authRequestHeaders"`
				AuthResponseHeaders []string `yaml:"authResponseHeaders"`
			} `yaml:"forwardAuth"`
			Headers struct {
				CustomRequestHeaders map[string]string `yaml:"customRequestHeaders"`
			}
		}
		Services map[string]struct {
			LoadBalancer struct {
				Servers []struct{ URL string }
			} `yaml:"loadBalancer"`
		}
	}
}

// startTraefik starts a stand-in for Traefik: it sends a GET with the listed
// headers of the request and X-Forwarded-*. Of those that it was sent, its entry
// point leaves only the balancer's, which trustForwardHeader passes on. It hands
// on any answer but a 2xx, and gives the app the listed headers of a 2xx. It has
// no variant that is open, and no timeout but 30 s.
func startTraefik(t *testing.T, weirs []string, app string, edits ...edit) string {
	var file traefikFile
	decodeFile(t, "traefik.yaml", &file, append([]edit{{"127.0.0.1:8080", weirs[0]}, {"127.0.0.1:9000", app}}, edits...)...)
	router := file.HTTP.Routers["app"]
	require.Equal(t, "PathPrefix(`/`)", router.Rule)
	require.Equal(t, []string{"own", "weir"}, router.Middlewares)
	custom := file.HTTP.Middlewares["own"].Headers.CustomRequestHeaders
	auth := file.HTTP.Middlewares["weir"].ForwardAuth
	servers := file.HTTP.Services[router.Service].LoadBalancer.Servers
	require.Len(t, servers, 1)

	client := &http.Client{Transport: &http.Transport{}, Timeout: 30 * time.Second}
	t.Cleanup(client.CloseIdleConnections)
	return serveProxy(t, strings.TrimPrefix(servers[0].URL, "http://"), func(w http.ResponseWriter, r *http.Request) http.Header {
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		for name := range r.Header {
			if strings.HasPrefix(name, "X-Forwarded-") && host != balancer {
				r.Header.Del(name)
			}
		}
		for name, value := range custom {
			require.Empty(t, value) // takes the header away
			r.Header.Del(name)
		}
		request, err := http.NewRequest(http.MethodGet, auth.Address, nil)
		if err != nil {
			panic(err)
		}
		for _, name := range auth.AuthRequestHeaders {
			if values := r.Header.Values(name); len(values) > 0 {
				request.Header[http.CanonicalHeaderKey(name)] = values
			}
		}
		for name, value := range map[string]string{"Method": r.Method, "Proto": "http", "Host": r.Host, "Uri": r.RequestURI} {
			if told := r.Header.Get("X-Forwarded-" + name); auth.TrustForwardHeader && told != "" {
				value = told
			}
			request.Header.Set("X-Forwarded-"+name, value)
		}
		addresses := []string{host}
		if auth.TrustForwardHeader {
			addresses = append(slices.Clone(r.Header["X-Forwarded-For"]), host)
		}
		request.Header.Set("X-Forwarded-For", strings.Join(addresses, ", "))
		answer, body, err := send(client, request)
		switch {
		case err != nil:
			w.WriteHeader(http.StatusInternalServerError)
			return nil
		case answer.StatusCode/100 != 2:
			for name, values := range answer.Header {
				w.Header()[name] = values
			}
			w.WriteHeader(answer.StatusCode)
			_, _ = w.Write(body)
			return nil
		}
		for _, name := range auth.AuthResponseHeaders {
			r.Header.Del(name)
			if values := answer.Header.Values(name); len(values) > 0 {
				r.Header[http.CanonicalHeaderKey(name)] = values
			}
		}
		return http.Header{}
	})
}

// envoyFile is a static configuration with the ext_authz filter.
type envoyFile struct {
	StaticResources struct {
		Listeners []struct {
			Address      envoyAddress
			FilterChains []struct {
				Filters []struct {
					Name        string
					TypedConfig struct {
						Type             string `yaml:"@type"`
						StatPrefix       string `yaml:"stat_prefix"`
						UseRemoteAddress bool   `yaml:"use_remote_address"`
						RouteConfig      struct {
							VirtualHosts []struct {
								Name    string
								Domains []string
								Routes  []struct {
									Match struct{ Prefix string }
									Route struct{ Cluster string }
								}
							} `yaml:"virtual_hosts"`
						} `yaml:"route_config"`
						HTTPFilters []struct {
							Name        string
							TypedConfig envoyAuthz `yaml:"typed_config"`
						} `yaml:"http_filters"`
					} `yaml:"typed_config"`
				}
			} `yaml:"filter_chains"`
		}
		Clusters []struct {
			Name           string
			ConnectTimeout string `yaml:"connect_timeout"`
			LoadAssignment struct {
				ClusterName string `yaml:"cluster_name"`
				Endpoints   []struct {
					LBEndpoints []struct {
						Endpoint struct{ Address envoyAddress }
					} `yaml:"lb_endpoints"`
				}
			} `yaml:"load_assignment"`
		}
	} `yaml:"static_resources"`
}

type envoyAddress struct {
	SocketAddress struct {
		Address   string
		PortValue int `yaml:"port_value"`
	} `yaml:"socket_address"`
}

type envoyAuthz struct {
	Type             string                `yaml:"@type"`
	FailureModeAllow bool                  `yaml:"failure_mode_allow"`
	StatusOnError    struct{ Code string } `yaml:"status_on_error"`
	AllowedHeaders   envoyHeaders          `yaml:"allowed_headers"`
	HTTPService      struct {
		ServerURI  struct{ URI, Cluster, Timeout string } `yaml:"server_uri"`
		PathPrefix string                                 `yaml:"path_prefix"`
		Response   struct {
			Denied   envoyHeaders `yaml:"allowed_client_headers"`
			Admitted envoyHeaders `yaml:"allowed_client_headers_on_success"`
		} `yaml:"authorization_response"`
	} `yaml:"http_service"`
}

type envoyHeaders struct{ Patterns []struct{ Exact string } }

// of returns the headers that match.
func (h envoyHeaders) of(from http.Header) http.Header {
	matching := http.Header{}
	for name, values := range from {
		if slices.Contains(h.Patterns, struct{ Exact string }{strings.ToLower(name)}) {
			matching[name] = values
		}
	}
	return matching
}

// startEnvoy starts a stand-in for Envoy: it sends the request's method, and
// its path behind the prefix, with the headers that are allowed and without
// body. Only 200 admits; 5xx or no answer in time is an error. The addresses in
// the file are checked, and the test's are used.
func startEnvoy(t *testing.T, weirs []string, app string, edits ...edit) string {
	var file envoyFile
	decodeFile(t, "envoy.yaml", &file, edits...)
	clusters := make(map[string]int)
	for _, c := range file.StaticResources.Clusters {
		require.Equal(t, c.Name, c.LoadAssignment.ClusterName)
		clusters[c.Name] = c.LoadAssignment.Endpoints[0].LBEndpoints[0].Endpoint.Address.SocketAddress.PortValue
	}
	require.Equal(t, map[string]int{"weir": 8080, "app": 9000}, clusters)
	connections := file.StaticResources.Listeners[0].FilterChains[0].Filters[0].TypedConfig
	require.True(t, connections.UseRemoteAddress)
	require.Equal(t, "app", connections.RouteConfig.VirtualHosts[0].Routes[0].Route.Cluster)
	require.Len(t, connections.HTTPFilters, 2)
	authz := connections.HTTPFilters[0].TypedConfig
	require.Equal(t, "weir", authz.HTTPService.ServerURI.Cluster)
	require.Equal(t, "ServiceUnavailable", authz.StatusOnError.Code)
	timeout, err := time.ParseDuration(authz.HTTPService.ServerURI.Timeout)
	require.NoError(t, err)

	client := &http.Client{Transport: &http.Transport{}, Timeout: timeout}
	t.Cleanup(client.CloseIdleConnections)
	return serveProxy(t, app, func(w http.ResponseWriter, r *http.Request) http.Header {
		// As use_remote_address does.
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		r.Header.Set("X-Forwarded-For", strings.Join(append(r.Header.Values("X-Forwarded-For"), host), ","))
		request, err := http.NewRequest(r.Method, "http://"+weirs[0]+authz.HTTPService.PathPrefix+r.RequestURI, nil)
		if err != nil {
			panic(err)
		}
		request.Host, request.Header = r.Host, authz.AllowedHeaders.of(r.Header)
		// A header's values are one to ext_authz.
		for name, values := range request.Header {
			request.Header[name] = []string{strings.Join(values, ",")}
		}
		answer, body, err := send(client, request)
		switch {
		case err != nil || answer.StatusCode >= 500:
			if authz.FailureModeAllow {
				return http.Header{}
			}
			w.WriteHeader(http.StatusServiceUnavailable)
			return nil
		case answer.StatusCode != http.StatusOK:
			for name, values := range authz.HTTPService.Response.Denied.of(answer.Header) {
				w.Header()[name] = values
			}
			w.WriteHeader(answer.StatusCode)
			_, _ = w.Write(body)
			return nil
		}
		return authz.HTTPService.Response.Admitted.of(answer.Header)
	})
}
