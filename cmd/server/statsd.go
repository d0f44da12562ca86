package main

import (
	"context"
	"log/slog"
	"regexp"
	"strings"
	"time"

	"github.com/DataDog/datadog-go/v5/statsd"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"weir/api/envoy"
)

const (
	// statsdInterval is how often metrics are sent.
	statsdInterval = 10 * time.Second
	// statsdPrefix begins all names of envoyproxy/ratelimit.
	statsdPrefix = "ratelimit.service."
)

// statsdNames are counters of weir that have one label with the value, and what
// envoyproxy/ratelimit calls them. Those of single limits are in limitName.
var statsdNames = []struct{ metric, label, value, name string }{
	{"weir_config_reloads_total", "outcome", "ok", "config_load_success"},
	{"weir_config_reloads_total", "outcome", "error", "config_load_error"},
	{"weir_degraded_checks_total", "policy", envoy.PolicyName, "call.should_rate_limit.redis_error"},
}

// sendStatsd sends the metrics of gatherer by the names of envoyproxy/ratelimit to a server of
// StatsD, until ctx ends, and then once more.
func sendStatsd(ctx context.Context, address string, tags []string, gatherer prometheus.Gatherer, log *slog.Logger) {
	var client *statsd.Client
	sent := make(map[string]int64)
	send := func() {
		if client == nil {
			var err error
			client, err = statsd.New(address, statsd.WithTags(tags), statsd.WithoutTelemetry(), statsd.WithoutOriginDetection())
			if err != nil {
				log.Warn("no metrics can be sent yet; weir tries again", slog.String("statsd", address), slog.Any("error", err))
				return
			}
		}
		families, err := gatherer.Gather()
		if err != nil {
			log.Warn("metrics can't be read", slog.Any("error", err))
		}
		for name, total := range statsdTotals(families) {
			if total > sent[name] {
				_ = client.Count(name, total-sent[name], nil, 1) // fails only when closed
			}
			sent[name] = total
		}
		_ = client.Flush()
	}
	every(ctx, statsdInterval, send)
	if send(); client != nil {
		_ = client.Close()
	}
}

// statsdTotals returns the counters that envoyproxy/ratelimit has, by its names.
func statsdTotals(families []*dto.MetricFamily) map[string]int64 {
	totals := make(map[string]int64)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			labels := make(map[string]string)
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			count := int64(m.GetCounter().GetValue())
			if family.GetName() == "weir_envoy_hits_total" {
				totals[statsdPrefix+"rate_limit."+limitName(labels["limit"])+"."+labels["kind"]] += count
			}
			for _, n := range statsdNames {
				if family.GetName() == n.metric && labels[n.label] == n.value {
					totals[statsdPrefix+n.name] += count
				}
			}
		}
	}
	return totals
}

var (
	dots      = regexp.MustCompile(`\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}`)
	separator = strings.NewReplacer(":", "_", "|", "_", "\n", "_")
)

// limitName returns the name of a limit as envoyproxy/ratelimit writes it, but in one line: a
// request may say what stands in it.
func limitName(s string) string {
	return dots.ReplaceAllStringFunc(separator.Replace(s), func(ip string) string { return strings.ReplaceAll(ip, ".", "_") })
}
