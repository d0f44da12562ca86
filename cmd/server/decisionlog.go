package main

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"

	"weir/api/telemetry"
)

// openDecisionLog returns the log of -decision-log and its writer, or nil if there is no such flag.
func openDecisionLog(cfg *config, registry *prometheus.Registry) (*telemetry.DecisionLog, *logWriter, error) {
	if cfg.decisionLog == "" {
		return nil, nil, nil
	}
	decisions, err := sampleOf(cfg.decisionSample)
	to := os.Stdout
	if err == nil && cfg.decisionLog != "-" {
		// Without O_NONBLOCK a pipe that nobody reads would hold up the start. Writing waits as ever.
		to, err = os.OpenFile(cfg.decisionLog, os.O_APPEND|os.O_CREATE|os.O_WRONLY|syscall.O_NONBLOCK, 0o640)
		if at, _ := os.Stat(cfg.decisionLog); errors.Is(err, syscall.ENXIO) && at != nil && at.Mode().Type() == os.ModeNamedPipe {
			err = fmt.Errorf("nobody reads the pipe %s; start its reader before weir", cfg.decisionLog)
		}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("-decision-log: %w", err)
	}
	w := newLogWriter(to)
	countDropped(registry, w, "weir_decision_log_lines_dropped_total", "Lines of the decision log that could not be written in time.")
	decisions.Writer, decisions.ShowClients = w, cfg.logClients
	return decisions, w, nil
}

// countDropped registers the metric of the lines that w has dropped.
func countDropped(registry *prometheus.Registry, w *logWriter, name, help string) {
	registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return float64(w.dropped.Load()) }))
}
