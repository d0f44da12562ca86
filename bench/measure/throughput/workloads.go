package throughput

import (
	"weir/bench/internal/algorithms"
	"weir/bench/internal/loadgen"
)

var (
	windows = algorithms.Select(algorithms.Fixed, algorithms.Sliding1, algorithms.Sliding4, algorithms.Sliding10, algorithms.Sliding60, algorithms.Strict60)

	// Of each of the windows.
	traffics = []loadgen.Traffic{loadgen.Distinct, loadgen.Hot, loadgen.Denied}
	// Of the sliding window of ten slots, which is the default. A million are more
	// than weir remembers: it reads all their slots.
	remembered = []loadgen.Traffic{loadgen.Few, loadgen.Million}
)

// workloads returns all rows that are measured over HTTP.
func workloads() []loadgen.Workload {
	var all []loadgen.Workload
	for _, a := range windows {
		for _, t := range traffics {
			all = append(all, loadgen.Workload{Algorithm: a, Traffic: t})
		}
	}
	for _, t := range remembered {
		all = append(all, loadgen.Workload{Algorithm: algorithms.Named(algorithms.Sliding10), Traffic: t})
	}
	return all
}

// policies are the workloads that weir has policies for: those of all rows.
func policies() []loadgen.Workload {
	all := workloads()
	for _, w := range ways() {
		all = append(all, w.checks())
	}
	return append(all, places)
}
