package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/bench/architecture"
	simulated "weir/bench/traffic"
)

func TestArrivalsOfTheArchitectures(t *testing.T) {
	attack := slices.Collect(situation{attackerName, 8, time.Second, 4}.arrivals(1))
	require.Len(t, attack, 4*180)
	assert.Equal(t, simulated.Arrival{At: 250 * time.Millisecond, Client: 7}, attack[1], "the client that moves with each doubling to eight")

	busy := slices.Collect(usual(busyName).arrivals(1))
	assert.InDelta(t, 5*1800, len(busy), 5*95, "five a second for half an hour, within five standard deviations")
	assert.Equal(t, 7, busy[0].Client)
	assert.NotEqual(t, busy, slices.Collect(usual(busyName).arrivals(2)))
}

func TestAllMovesOfStickySessionsAreInOneWindow(t *testing.T) {
	scale := situation{Instances: 32}.scaleOut()
	assert.Equal(t, 16, scale.Instances(scaleStart+4*scaleEvery-1))
	assert.Equal(t, 32, scale.Instances(scaleStart+4*scaleEvery))
	assert.Less(t, scaleStart+4*scaleEvery+time.Second, sharedLimit.Window)
}

func TestArchitecturesThatDisagreeWithTheirModel(t *testing.T) {
	row := func(name, client string, fullest int) architectureRow {
		return architectureRow{
			Architecture: name, situation: usual(client), Figures: architecture.Figures{Fullest: fullest, Calendar: fullest}, Least: 100, Most: 200,
		}
	}
	fixed := row(fixedName, attackerName, 100)
	fixed.Fullest = 400
	for _, tt := range []struct {
		name string
		row  architectureRow
		want string
	}{
		{"within its bounds", row(chattyName, attackerName, 150), ""},
		{"eight instances, each one off", row(chattyName, attackerName, 208), ""},
		{"too many", row(chattyName, attackerName, 209), "chatty, attacker, 8 instances, lag 100ms, 1000 requests/s: 209 admitted in a window; the model says 100.0 to 200.0"},
		{"each one less", row(chattyName, attackerName, 92), ""},
		{"too few", row(chattyName, attackerName, 91), "91 admitted"},
		{"a busy client has no model", row(chattyName, busyName, 9000), ""},
		{"fixed, across a boundary", fixed, ""},
		{"fixed", row(fixedName, attackerName, 201), "weir, fixed, attacker"},
		{"strict", row(strictName, attackerName, 201), "201 admitted"},
		{"strict, too few", row(strictName, attackerName, 99), "99 admitted"},
		{"strict, of a busy client", row(strictName, busyName, 201), "201 admitted"},
		{"strict, of a less busy client", row(strictName, busyName, 10), ""},
	} {
		for _, r := range []architecturesReport{{Instances: []architectureRow{tt.row}}, {Lag: []architectureRow{tt.row}}, {Load: []architectureRow{tt.row}}} {
			if err := r.broken(); tt.want == "" {
				assert.NoError(t, err, tt.name)
			} else {
				assert.ErrorContains(t, err, tt.want, tt.name)
			}
		}
	}
}

func TestSweepsAreTables(t *testing.T) {
	row := func(name, client string, instances, fullest int) architectureRow {
		return architectureRow{Architecture: name, situation: situation{Traffic: client, Instances: instances}, Figures: architecture.Figures{Fullest: fullest, Calendar: 1}}
	}
	r := architecturesReport{Limit: 100}
	rows := []architectureRow{
		row(stickyName, attackerName, 1, 100), row(fixedName, attackerName, 1, 200), row(stickyName, busyName, 1, 100),
		row(stickyName, attackerName, 16, 550), row(fixedName, attackerName, 16, 200), row(stickyName, busyName, 16, 300),
	}
	var out bytes.Buffer
	printSweep(&out, "title", attackerName, rows, func(a architectureRow) string { return strconv.Itoa(a.Instances) }, func(a architectureRow) string {
		return strconv.FormatFloat(r.over(a), 'f', 2, 64)
	})
	assert.Equal(t, `
title
                      1    16
  sticky, rebound  1.00  5.50
      weir, fixed  0.01  0.01
`, out.String())
}

func TestABrokenRunIsWrittenAndFails(t *testing.T) {
	dir := t.TempDir()
	r := architecturesReport{Limit: 100}
	for _, instances := range []int{1, 2} {
		r.Instances = append(r.Instances, architectureRow{
			Architecture: strictName, situation: situation{Traffic: attackerName, Instances: instances}, Figures: architecture.Figures{Fullest: 101}, Least: 100, Most: 100,
		})
	}
	var out bytes.Buffer
	assert.ErrorContains(t, publish(&out, dir, "architectures", &r), "101 admitted")
	assert.Contains(t, out.String(), "1.01  1.01")
	assert.FileExists(t, filepath.Join(dir, "architectures.json"))
	assert.FileExists(t, filepath.Join(dir, "architectures.png"))
}

func TestNothingIsDrawnOfASinglePoint(t *testing.T) {
	row := func(lag time.Duration, admitted int) architectureRow {
		return architectureRow{
			Architecture: chattyName, situation: situation{attackerName, 1, lag, 1000}, Figures: architecture.Figures{Fullest: admitted},
		}
	}
	r := architecturesReport{Limit: 100, Instances: []architectureRow{row(0, 100)}, Lag: []architectureRow{row(0, 100), row(time.Second, 100), row(time.Minute, 0)}}
	pictures, err := r.draw(t.TempDir())
	require.NoError(t, err)
	assert.Empty(t, pictures)
}

func TestTicksOfDecades(t *testing.T) {
	assert.Equal(t, "1ms", decade(time.Millisecond.Seconds(), time.Millisecond))
	assert.Equal(t, "10s", decade(10, 10*time.Second))
	assert.Empty(t, decade(0.3, "0.3"))
}

func TestQuickArchitectures(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "results")
	var out bytes.Buffer
	require.NoError(t, execute(t.Context(), []string{"architectures", "-quick", "-seed", "7", "-out", dir}, &out))
	assert.Contains(t, out.String(), "seed 7\n")

	encoded, err := os.ReadFile(filepath.Join(dir, "architectures.json"))
	require.NoError(t, err)
	var r architecturesReport
	require.NoError(t, json.Unmarshal(encoded, &r))
	over := func(rows []architectureRow, name, client string) []float64 {
		var all []float64
		for _, row := range rows {
			if row.Architecture == name && row.Traffic == client {
				all = append(all, r.over(row))
			}
		}
		return all
	}
	for _, client := range []string{attackerName, busyName} {
		for _, weir := range []string{fixedName, strictName} {
			assert.Equal(t, []float64{1, 1}, over(r.Instances, weir, client), "%s, %s", weir, client)
			assert.Equal(t, []float64{1, 1}, over(r.Lag, weir, client), "%s, %s", weir, client)
		}
	}
	assert.Equal(t, []float64{1, 4}, over(r.Instances, stickyName, attackerName), "three moves: four limits")
	assert.InDeltaSlice(t, []float64{1, 1.875}, over(r.Instances, chattyName, attackerName), 0.08, "and seven eighths of 100 on their way")
	assert.InDeltaSlice(t, []float64{1.1, 11}, over(r.Lag, laterName, attackerName), 0.02)
	assert.InDeltaSlice(t, []float64{1.1, 11}, over(r.Lag, streamName, attackerName), 0.02)
	load := over(r.Load, streamName, attackerName)
	assert.InDelta(t, 1.1, load[0], 0.02)
	assert.Greater(t, load[1], 900.0, "3000 a second are too many for its consumer")
	// The last of three minutes at 3000 a second is done after four and a half.
	slowest := slices.MaxFunc(r.rows(), func(a, b architectureRow) int { return cmp.Compare(a.WorstLag, b.WorstLag) })
	assert.InDelta(t, 90.1, slowest.WorstLag.Seconds(), 0.01)
	assert.Equal(t, []balanceRow{{1, 1, 1}}, r.Balance[:1])
	assert.Greater(t, r.Balance[1].Staying, 4.0)
	assert.Less(t, r.Balance[1].Rebound, 2.0)

	var again bytes.Buffer
	r.print(&again)
	assert.Equal(t, out.String(), again.String(), "the tables are made of what the file has")
	for name, magic := range map[string]string{"architectures.png": "\x89PNG\r\n", "architectures.svg": "<?xml"} {
		drawn, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		assert.Truef(t, strings.HasPrefix(string(drawn), magic), "%s begins with %.20q", name, drawn)
	}
}
