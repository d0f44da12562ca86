package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/bench/accuracy"
)

func readJSON(t *testing.T, file string, into any) {
	encoded, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(encoded, into))
}

func TestAccuracyEndToEnd(t *testing.T) {
	dir := t.TempDir()
	var out bytes.Buffer
	require.NoError(t, execute(t.Context(), []string{"accuracy", "-quick", "-requests", "2000", "-seed", "7", "-out", dir}, &out))
	var r accuracyReport
	readJSON(t, filepath.Join(dir, "accuracy.json"), &r)
	assert.Equal(t, uint64(7), r.Seed)
	assert.Len(t, r.Rows, 18*10)
	assert.Len(t, r.Attacks, 10)
	assert.Len(t, r.Traces, 8)
	for _, row := range r.Rows {
		assert.Positive(t, row.Feedback.Requests, "%s, %s", row.Traffic, row.Algorithm)
		if row.Algorithm == accuracy.Log {
			assert.Equal(t, accuracy.Difference{Requests: row.Feedback.Requests, True: row.Feedback.True}, row.Feedback, "%s: the log is exact", row.Traffic)
			assert.Equal(t, row.LogAdmitted, row.Admitted, row.Traffic)
		}
	}
	for _, text := range []string{"seed 7", "back-loaded", "strict N=60", "burst at 59.999999s", "fixed admits 2.00 L in a window, 2.00 L: ok"} {
		assert.Contains(t, out.String(), text)
	}
	for _, name := range []string{"steady", "poisson", "bursty", "day", "front-loaded", "back-loaded", "boundary", "zipf", "cost"} {
		for _, format := range []string{".svg", ".png"} {
			picture, err := os.Stat(filepath.Join(dir, "accuracy-"+name+format))
			if assert.NoError(t, err) {
				assert.Greater(t, picture.Size(), int64(5000), name)
			}
		}
	}

	// Pictures are made of the JSON alone.
	before, err := os.ReadFile(filepath.Join(dir, "accuracy-bursty.svg"))
	require.NoError(t, err)
	again := t.TempDir()
	_, err = r.draw(again)
	require.NoError(t, err)
	after, err := os.ReadFile(filepath.Join(again, "accuracy-bursty.svg"))
	require.NoError(t, err)
	assert.Equal(t, before, after)

	// The same seed gives the same figures, but for what depends on the machine.
	require.NoError(t, execute(t.Context(), []string{"accuracy", "-quick", "-requests", "2000", "-seed", "7", "-out", again}, &out))
	var second accuracyReport
	readJSON(t, filepath.Join(again, "accuracy.json"), &second)
	second.Machine, second.Speeds = r.Machine, r.Speeds
	assert.Equal(t, r, second)
}

func TestAccuracyAtScaleEndToEnd(t *testing.T) {
	dir := t.TempDir()
	var out bytes.Buffer
	require.NoError(t, execute(t.Context(), []string{"accuracy", "-scale", "-requests", "60000", "-out", dir}, &out))
	var r scaleReport
	readJSON(t, filepath.Join(dir, "accuracy-scale.json"), &r)
	assert.Positive(t, r.Requests)
	assert.Len(t, r.Rows, 10)
	for _, text := range []string{"Cloudflare (2017)", "0.0030% wrong", "0.7", "4 are steady, 6 are poisson"} {
		assert.Contains(t, out.String(), text)
	}
}

func TestAccuracyThatFailsSaysSo(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, args := range [][]string{{"accuracy", "-quick"}, {"accuracy", "-scale", "-quick"}} {
		dir := t.TempDir()
		err := execute(ctx, append(args, "-out", dir), &bytes.Buffer{})
		assert.ErrorIs(t, err, context.Canceled)
		files, err := os.ReadDir(dir)
		require.NoError(t, err)
		assert.Empty(t, files)
	}
}

// expected returns a report that meets all targets.
func expected() *accuracyReport {
	r := &accuracyReport{}
	row := func(traffic, algorithm string, difference, fullest int64) {
		for _, demand := range accuracy.Demands() {
			d := accuracy.Difference{Requests: 100, Sum: difference, True: 10_000}
			r.Rows = append(r.Rows, accuracy.Row{
				Traffic: traffic, Limit: 100, Demand: demand, Algorithm: algorithm, Feedback: d, All: d, Admissions: accuracy.Admissions{Fullest: fullest},
			})
		}
	}
	for _, traffic := range []string{accuracy.Poisson, accuracy.Bursty, accuracy.FrontLoaded, accuracy.BackLoaded} {
		row(traffic, accuracy.Sliding1, 1000, 130)
		row(traffic, accuracy.Sliding60, 100, 101)
	}
	row(accuracy.Boundary, accuracy.Fixed, 0, 200)
	row(accuracy.Boundary, accuracy.Strict60, 0, 100)
	row(accuracy.Boundary, accuracy.Log, 0, 100)
	for _, a := range accuracy.Algorithms() {
		r.Attacks = append(r.Attacks, accuracy.AttackRow{Algorithm: a.Name, Limit: 100, Bound: a.Bound(100), Written: accuracy.Catch{Fullest: a.Bound(100)}})
	}
	r.Costs = []coldCheck{{Algorithm: accuracy.Fixed, Counters: true}, {Algorithm: accuracy.Log}}
	r.Speeds = []accuracy.Speed{
		{Algorithm: accuracy.Fixed, Decisions: 2_000_000, Elapsed: time.Second}, {Algorithm: accuracy.Log, Decisions: 1, Elapsed: time.Second},
	}
	return r
}

func TestAccuracyTargets(t *testing.T) {
	r := expected()
	require.NoError(t, r.broken())
	// Four kinds of traffic, each with every request counted for both demands and
	// with admitted ones counted for one, the boundary attacker, strict and log.
	assert.Len(t, r.targets(), 4*3+3)
	assert.Equal(t, []target{{"fixed: 2.00 million decisions/s per core, at least 1", true}}, r.speedTargets(), "the log isn't made of counters")

	for missed, spoil := range map[string]func(r *accuracyReport){
		"poisson, demand 1, every request counts: mean difference of N=60 0.210 of N=1's, at most 0.200: MISSED": func(r *accuracyReport) { r.Rows[2].All.Sum = 210 },
		"poisson, demand 1, admitted count: mean difference of N=60 0.210 of N=1's, at most 0.200: MISSED":       func(r *accuracyReport) { r.Rows[2].Feedback.Sum = 210 },
		"bursty, demand 2, every request counts: mean difference of N=60 0.110 of N=1's, at most 0.100: MISSED":  func(r *accuracyReport) { r.Rows[7].All.Sum = 110 },
		"boundary attacker: fixed admits 1.98 L in a window, 2.00 L: MISSED":                                     func(r *accuracyReport) { r.Rows[16].Fullest = 198 },
		"all traffic and all attacks: strict N=60 admits 1.01 L in a window, at most 1.00 L: MISSED":             func(r *accuracyReport) { r.Rows[19].Fullest = 101 },
		"all traffic and all attacks: log admits 1.02 L in a window, at most 1.00 L: MISSED":                     func(r *accuracyReport) { r.Attacks[9].Found.Fullest, r.Attacks[9].Bound = 102, 102 },
		"attacks: token admits 200 in a window, at most 199: MISSED":                                             func(r *accuracyReport) { r.Attacks[7].Found.Fullest = 200 },
	} {
		r := expected()
		spoil(r)
		assert.EqualError(t, r.broken(), missed)
	}

	r.Speeds[0].Elapsed = 4 * time.Second
	assert.Equal(t, []target{{"fixed: 0.50 million decisions/s per core, at least 1", false}}, r.speedTargets())
	assert.NoError(t, r.broken(), "a speed is no error")
}

func TestScaleIsBrokenByWrongDecisionsOfExactLimiters(t *testing.T) {
	row := func(algorithm string, d accuracy.Difference) *scaleReport {
		return &scaleReport{CrowdFigures: accuracy.CrowdFigures{Rows: []accuracy.CrowdRow{{Algorithm: algorithm, Feedback: d}}}}
	}
	assert.NoError(t, row(accuracy.Sliding60, accuracy.Difference{Sum: 1, WronglyAdmitted: 1, WronglyDenied: 1}).broken())
	assert.NoError(t, row(accuracy.Strict60, accuracy.Difference{Sum: 1, WronglyDenied: 1}).broken())
	assert.EqualError(t, row(accuracy.Strict60, accuracy.Difference{WronglyAdmitted: 1}).broken(), "strict N=60 admitted 1 requests above the limit")
	assert.EqualError(t, row(accuracy.Log, accuracy.Difference{WronglyDenied: 1}).broken(), "log wasn't the true count, or denied 1 requests that fit")
}

func TestParallelStopsAtAnError(t *testing.T) {
	failed := errors.New("failed")
	done := make([]bool, 1000)
	err := parallel(len(done), func(i int) error {
		done[i] = true
		if i == 10 {
			return failed
		}
		return nil
	})
	assert.ErrorIs(t, err, failed)
	assert.NotContains(t, done[:10], false)
	assert.Contains(t, done, false)
	require.NoError(t, parallel(len(done), func(i int) error {
		done[i] = true
		return nil
	}))
	assert.NotContains(t, done, false)
}
