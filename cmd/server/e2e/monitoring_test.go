package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"weir/cmd/server/servertest"
	"weir/counters/memcachedtest"
)

const (
	rulesFile     = "../../../deploy/prometheus-rules.yml"
	rulesTestFile = "../../../deploy/prometheus-rules.test.yml"
	dashboardFile = "../../../deploy/grafana-dashboard.json"
)

func read(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(data)
}

func TestAlertsAreRight(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"check", "rules", rulesFile}, {"test", "rules", rulesTestFile}} {
		out, err := debian(t, "promtool", args...).CombinedOutput()
		assert.NoError(t, err, "promtool %v: %s", args, out)
	}
}

// An alert is of use if it says what to do.
func TestEachAlertHasARunbook(t *testing.T) {
	t.Parallel()
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert       string
				Annotations map[string]string
			}
		}
	}
	require.NoError(t, yaml.Unmarshal([]byte(read(t, rulesFile)), &rules))
	readme := read(t, "../../../deploy/README.md")
	tested := read(t, rulesTestFile)
	for _, rule := range rules.Groups[0].Rules {
		assert.Equal(t, "https://weir.example/deploy/README.md#"+strings.ToLower(rule.Alert), rule.Annotations["runbook_url"])
		assert.Contains(t, readme, "\n### "+rule.Alert+"\n")
		assert.Contains(t, tested, "- alertname: "+rule.Alert+"\n")
	}
	assert.Len(t, rules.Groups[0].Rules, 11)
}

// expressions returns what the panels of the dashboard ask Prometheus, with the
// variables that Grafana would fill in.
func expressions(t *testing.T) []string {
	t.Helper()
	var dashboard struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}
	require.NoError(t, json.Unmarshal([]byte(read(t, dashboardFile)), &dashboard))
	variables := strings.NewReplacer("$__rate_interval", "10s", "$job", ".*", "$instance", ".*", "$policy", ".*")
	var all []string
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			all = append(all, variables.Replace(target.Expr))
		}
	}
	require.NotEmpty(t, all)
	return all
}

var metricName = regexp.MustCompile(`\bweir_\w+`)

// blockAbuser makes an override.
func blockAbuser(t *testing.T, p *process) {
	t.Helper()
	status, _, body, err := p.Send(http.MethodPut, "/v1/policies/token/overrides/abuser", "application/json", `{"blocked":true,"for":"1h"}`)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, status, "%s", body)
}

// startMonitored returns a process that has all that a panel can show.
func startMonitored(t *testing.T) *process {
	t.Helper()
	limits := servertest.WriteFile(t, "limits.yaml", "domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1000000}}]\n")
	r := startProcess(t, "-store-timeout", "5s", "-decision-log", os.DevNull, "-envoy-config", limits, "-memcached", memcachedtest.Start(t).Addr, "-config", servertest.WriteFile(t, "policies.yaml", `policies:
  fixed: {limits: [{algorithm: fixed_window, limit: 100, window: 1m}]}
  token: {limits: [{algorithm: token_bucket, limit: 100, window: 1m}]}
  llm:
    limits:
      - {name: tokens, algorithm: token_bucket, limit: 1000000, window: 1m}
      - {name: in-flight, algorithm: concurrency, limit: 8, lease: 1m, counts: requests}
`))
	blockAbuser(t, r)
	return r
}

// askForEnvoy asks about a limit for Envoy.
func askForEnvoy(t *testing.T, r *process) {
	t.Helper()
	a := r.Ask(t, http.MethodPost, "/json", "application/json", `{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"v"}]}]}`)
	require.Equal(t, http.StatusOK, a.Status)
}

// settleLess settles a check below its estimate.
func settleLess(t *testing.T, r *process) {
	t.Helper()
	_, _, body, err := r.Send(http.MethodPost, "/v1/check", "application/json", `{"policy":"llm","client":"c","cost":60,"settle":true}`)
	require.NoError(t, err)
	var check struct{ Receipt string }
	require.NoError(t, json.Unmarshal(body, &check))
	settled := r.Ask(t, http.MethodPost, "/v1/settle", "application/json", fmt.Sprintf(`{"receipt":%q,"cost":18}`, check.Receipt))
	require.Equal(t, http.StatusOK, settled.Status)
}

// What the dashboard and the alerts name is what weir serves, no more, and the
// dashboard leaves nothing out.
func TestDashboardAndAlertsNameTheMetricsOfAScrape(t *testing.T) {
	t.Parallel()
	r := startMonitored(t)
	r.Check(t, "token", "c", 1)
	r.Check(t, "token", "abuser", 1)
	settleLess(t, r)
	askForEnvoy(t, r)
	var metrics string
	require.Eventually(t, func() bool {
		_, metrics = r.Get(t, "/metrics")
		return strings.Contains(metrics, "\nweir_memcached_items{")
	}, servertest.Patience, 10*time.Millisecond)
	served := make(map[string]bool)
	for line := range strings.Lines(metrics) {
		if strings.HasPrefix(line, "weir_") {
			served[metricName.FindString(line)] = true
		}
	}
	shown := make(map[string]bool)
	for _, name := range metricName.FindAllString(strings.Join(expressions(t), "\n"), -1) {
		assert.True(t, served[name], "the dashboard names %s", name)
		shown[name] = true
	}
	for _, name := range metricName.FindAllString(read(t, rulesFile), -1) {
		assert.True(t, served[name], "an alert names %s", name)
	}
	ofHistogram := regexp.MustCompile(`_(bucket|sum|count)$`)
	for name := range served {
		base := ofHistogram.ReplaceAllString(name, "")
		assert.True(t, shown[name] || shown[base+"_bucket"] || shown[base+"_sum"], "the dashboard leaves out %s", name)
	}
}

// A prometheusServer is Debian's, scraping one instance of weir every second.
type prometheusServer struct{ servertest.Service }

func startPrometheus(t *testing.T, target string) *prometheusServer {
	t.Helper()
	address := "127.0.0.1:" + freePort(t)
	rules, err := filepath.Abs(rulesFile)
	require.NoError(t, err)
	config := servertest.WriteFile(t, "prometheus.yml", fmt.Sprintf(
		"global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [%s]\nscrape_configs: [{job_name: weir, static_configs: [{targets: [%q]}]}]\n",
		rules, target))
	log := servertest.NewLog()
	cmd := debian(t, "prometheus", "--config.file="+config, "--storage.tsdb.path="+t.TempDir(), "--web.listen-address="+address)
	cmd.Stderr = log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	log.Wait(t, "Server is ready to receive web requests")
	return &prometheusServer{servertest.NewService(t, "http://"+address, nil)}
}

// decode decodes the data of an answer of Prometheus's API.
func (p *prometheusServer) decode(t *testing.T, path string, data any) {
	t.Helper()
	_, body := p.Get(t, path)
	answer := struct {
		Status, Error string
		Data          any
	}{Data: data}
	require.NoError(t, json.Unmarshal([]byte(body), &answer), body)
	require.Equal(t, "success", answer.Status, "%s: %s", path, answer.Error)
}

// Each panel has something to show, and each alert can be evaluated.
func TestPrometheusUnderstandsDashboardAndAlerts(t *testing.T) {
	t.Parallel()
	r := startMonitored(t)
	p := startPrometheus(t, r.Address())
	for _, expression := range expressions(t) {
		require.Eventually(t, func() bool {
			for _, cost := range []int64{60, 1} {
				r.Check(t, "fixed", "c", cost)
				r.Check(t, "token", "c", cost)
				r.Check(t, "token", "abuser", cost)
			}
			settleLess(t, r)
			askForEnvoy(t, r)
			var found struct{ Result []any }
			p.decode(t, "/api/v1/query?query="+url.QueryEscape(expression), &found)
			return len(found.Result) > 0
		}, servertest.Patience, 100*time.Millisecond, expression)
	}
	var rules struct {
		Groups []struct {
			Rules []struct{ Name, Health, LastError string }
		}
	}
	require.Eventually(t, func() bool {
		p.decode(t, "/api/v1/rules", &rules)
		return len(rules.Groups) == 1 && rules.Groups[0].Rules[8].Health != "unknown"
	}, servertest.Patience, 100*time.Millisecond)
	for _, rule := range rules.Groups[0].Rules {
		assert.Equal(t, "ok", rule.Health, "%s: %s", rule.Name, rule.LastError)
	}
}
