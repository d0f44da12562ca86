package main

import (
	"fmt"
	"io"

	"github.com/prometheus/client_golang/prometheus"

	"weir/api/envoy"
	"weir/api/policyfile"
	"weir/api/telemetry"
	"weir/counters/memory"
)

// validate checks a policy file, or the built-in policies when there is none,
// and prints to out what it means. It refuses what a server with the same flags
// would refuse, and connects to nothing.
func validate(cfg *config, out io.Writer) error {
	if cfg.envoyEnv {
		fmt.Fprintln(out, "The variables of envoyproxy/ratelimit are:")
		for _, s := range cfg.envoyFlags {
			fmt.Fprintf(out, "  %v\n", s)
		}
		for _, note := range cfg.envoyNotes {
			fmt.Fprintf(out, "  not so: %s\n", note)
		}
	}
	content, err := readPolicyFiles(cfg, nil)
	if err != nil {
		return err
	}
	metrics := telemetry.NewMetrics(prometheus.NewRegistry(), version())
	unused := policyfile.NewLimiters(memory.New(nil), cfg.limiterOptions(), metrics, nil)
	loaded, err := loadLimits(cfg, content, unused)
	if err != nil {
		return err
	}
	switch {
	case cfg.envoyXDS.server != "":
		loaded.policies[envoy.PolicyName].Description = fmt.Sprintf("what %s sends", cfg.envoyXDS.server)
	case loaded.envoy != nil:
		loaded.policies[envoy.PolicyName].Description = fmt.Sprintf("%s of %s", policyfile.DescribeEnvoy(loaded.envoy), cfg.envoyConfig)
	}
	// Describe gets limiters as they are on Memcached. If a window is too short for its
	// store timeout, it gets those of the flags.
	_ = policyfile.NewLimiters(memory.New(nil), cfg.memcachedOptions(), metrics, nil).Bind(loaded.policies)
	_, err = io.WriteString(out, policyfile.Describe(loaded.policies))
	return err
}
