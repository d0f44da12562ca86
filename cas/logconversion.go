package cas

// A new policy may give a limit the option entries, or take it away, while its clients have
// logs: each kind of log reads the other's states.

// decode returns the state that encode made data of, and takes data over, or a
// CountingLog's; any other data is errForeignState.
func (l log) decode(data []byte) (logState, error) {
	if len(data) > 0 && data[0] == formatCountingLog {
		counted, err := decodeCounted(data)
		return l.exact(counted), err
	}
	return decodeLog(data)
}

// decode returns the state that encode made data of, or a SlidingLog's; any
// other data is errForeignState.
func (l counting) decode(data []byte) (countingState, error) {
	if len(data) == 0 || data[0] != formatSlidingLog {
		return decodeCounted(data)
	}
	exact, err := decodeLog(data)
	s := countingState{generation: exact.generation, time: exact.time}
	for t, cost := range exact.all() {
		s.entries = append(s.entries, counted{t, t, cost})
	}
	return s, err
}

// exact returns the log of what was counted: of each entry 1 leaves with its
// first, and the rest with its last.
func (l log) exact(counted countingState) logState {
	costs := make(map[int64]int64)
	for _, e := range counted.entries {
		if e.cost > 1 {
			costs[e.first]++
			e.cost--
		}
		costs[e.last] += e.cost
	}
	return l.of(costs, counted.generation, counted.time)
}
