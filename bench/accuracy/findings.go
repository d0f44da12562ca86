package accuracy

import (
	"fmt"

	"weir/bench/internal/algorithms"
	"weir/bench/internal/report"
)

// Findings implements report.Finder.
func (r *Report) Findings() []report.Finding {
	if len(r.Rows) == 0 || len(r.Large) == 0 || len(r.Attacks) == 0 {
		return nil
	}
	worst := func(algorithm string, limit int64) float64 {
		found, _ := r.attack(algorithm, limit)
		return ratio(found.Worst(), limit)
	}
	large := func(traffic, algorithm string) float64 {
		found, _ := report.Find(r.Large, func(row Row) bool { return row.Traffic == traffic && row.Algorithm == algorithm })
		return found.ofLog()
	}
	ofLog := func(traffic, algorithm string) float64 {
		found, _ := r.find(traffic, 2, algorithm)
		return found.ofLog()
	}
	mean := func(traffic, algorithm string) float64 {
		found, _ := r.find(traffic, 1, algorithm)
		return 100 * found.All.Relative()
	}
	return []report.Finding{
		{Picture: "accuracy-attack", Text: fmt.Sprintf(
			"**What an attacker gets who knows the clock**, in one window: %.2f times the limit of a weighted window, with N=10 as with N=60, and %.2f "+
				"of a fixed one; of capped %.2f with N=10 and %.2f with N=60 (%.2f if the limit is %d); %.2f of strict and of logs, exact and counting. "+
				"Grey is what was admitted in the last 60 s, the line what the algorithm believes.",
			worst(algorithms.Sliding10, DocumentLimit), worst(algorithms.Fixed, DocumentLimit), worst(algorithms.Capped10, DocumentLimit),
			worst(algorithms.Capped60, DocumentLimit), worst(algorithms.Capped60, largeLimit), largeLimit, worst(algorithms.Counting64, DocumentLimit))},
		{Text: fmt.Sprintf(
			"**What each gives for it** of what an exact log admits, at twice a limit of %d: when 90%% of a minute's requests come in its first 10 s, weighted with "+
				"N=10 gives %.1f%%, capped with N=10 %.1f%%, strict with N=60 %.1f%%, a log that counts with 64 entries %.1f%% and with 32 %.1f%%. On independent "+
				"arrivals it is %.1f%%, %.1f%%, %.1f%%, %.1f%% and %.1f%%. Memcached needs %d, %d, %d, %d and %d bytes for a client, and %d for an exact log.",
			largeLimit, large(FrontLoaded, algorithms.Sliding10), large(FrontLoaded, algorithms.Capped10), large(FrontLoaded, algorithms.Strict60),
			large(FrontLoaded, algorithms.Counting64), large(FrontLoaded, algorithms.Counting32),
			large(Poisson, algorithms.Sliding10), large(Poisson, algorithms.Capped10), large(Poisson, algorithms.Strict60),
			large(Poisson, algorithms.Counting64), large(Poisson, algorithms.Counting32),
			r.cost(algorithms.Sliding10).Bytes, r.cost(algorithms.Capped10).Bytes, r.cost(algorithms.Strict60).Bytes,
			r.cost(algorithms.Counting64).Bytes, r.cost(algorithms.Counting32).Bytes, r.cost(algorithms.Log).Bytes)},
		{Picture: "accuracy-front-loaded-enforced", Text: fmt.Sprintf(
			"**Strict pays in throughput.** With N=60, at twice a limit of %d, it admits %.1f%% of what an exact log does on independent arrivals and %.1f%% "+
				"when 90%% of each minute's requests come in its first 10 s, as in the picture.",
			DocumentLimit, ofLog(Poisson, algorithms.Strict60), ofLog(FrontLoaded, algorithms.Strict60))},
		{Picture: "accuracy-cost", Text: fmt.Sprintf(
			"**More slots pay at once, and soon less.** On independent arrivals at the limit the estimate is off by %.1f%% of the true count with N=1, "+
				"%.1f%% with N=10 and %.1f%% with N=60; on bursts of 7 seconds by %.0f%%, %.1f%% and %.1f%%.",
			mean(Poisson, algorithms.Sliding1), mean(Poisson, algorithms.Sliding10), mean(Poisson, algorithms.Sliding60),
			mean(Bursty, algorithms.Sliding1), mean(Bursty, algorithms.Sliding10), mean(Bursty, algorithms.Sliding60))},
	}
}

// Findings implements report.Finder.
func (r *ScaleReport) Findings() []report.Finding {
	if len(r.Rows) == 0 {
		return nil
	}
	row := func(algorithm string) PopulationRow {
		found, _ := report.Find(r.Rows, func(row PopulationRow) bool { return row.Algorithm == algorithm })
		return found
	}
	wrong := func(d Difference) float64 { return 100 * ratio(d.Wrong(), d.Requests) }
	one, ten, sixty := row(algorithms.Sliding1), row(algorithms.Sliding10), row(algorithms.Sliding60)
	requests := float64(r.Requests) / 1e6
	if r.Like != "" {
		return []report.Finding{{Text: fmt.Sprintf(
			"**%.0f million requests like Cloudflare's**, of clients who are mostly far below their limit. As weir runs by default, only admitted requests count: "+
				"then N=1 decides %.4f%% of them wrongly, N=10 %.4f%% and N=60 %.4f%%. If every request counts, these are %.4f%%, %.4f%% and %.4f%%, with mean "+
				"differences of %.1f%%, %.1f%% and %.1f%%; of those never above the limit N=1 limits %d. Cloudflare published 0.003%%, 6%% and none, of N=1. "+
				"The traffic was tuned until N=1 came near these, and for nothing else.",
			requests, wrong(one.Feedback), wrong(ten.Feedback), wrong(sixty.Feedback), wrong(one.All), wrong(ten.All), wrong(sixty.All),
			100*one.All.Relative(), 100*ten.All.Relative(), 100*sixty.All.Relative(), one.BelowLimited)}}
	}
	return []report.Finding{{Picture: r.file(), Text: fmt.Sprintf(
		"**%.0f million harder requests**, of many clients near their limit. As weir runs by default, only admitted requests count: then N=1 decides %.2f%% of "+
			"them wrongly, N=10 %.2f%% and N=60 %.2f%%, %.1f times fewer than N=1. If every request counts, N=1 is wrong in %.2f%% and N=60 in %.3f%%, %.0f times fewer.",
		requests, wrong(one.Feedback), wrong(ten.Feedback), wrong(sixty.Feedback), wrong(one.Feedback)/wrong(sixty.Feedback),
		wrong(one.All), wrong(sixty.All), wrong(one.All)/wrong(sixty.All))}}
}
