package simulate

import (
	"io"
	"slices"
)

// An exploration of a plot is depth-first, and keeps no states: each run begins
// anew, chooses as the one before did up to the last choice that can be made
// otherwise, and goes on from there.
//
// Of runs that differ only in the order of steps that commute, because none
// changes what the other looks at, one is enough. The others are cut short by
// sleep sets (Godefroid 1996): when all that follows a choice has been explored,
// it isn't made again from where only steps have come since that commute with
// it.
type exploration struct {
	stage
	stack  []*node
	depth  int    // of the next node
	asleep []move // in that
	runs   int    // that came to their end
	cut    int    // that were cut short
}

// A move is a choice, and what it has touched.
type move struct {
	choice
	touches touches
}

// A node is a state in which there is a choice. Those asleep aren't made there.
type node struct {
	move
	enabled []choice
	asleep  []move
}

// next makes another choice, and reports whether there is one.
func (n *node) next() bool {
	for _, c := range n.enabled {
		if !slices.ContainsFunc(n.asleep, func(m move) bool { return m.choice == c }) {
			n.move = move{choice: c}
			return true
		}
	}
	return false
}

// explore explores p until something is violated. tell writes how that came.
func explore(p plot) (x *exploration, violated []violation, tell func(io.Writer)) {
	x = &exploration{stage: stage{plot: p, keys: make(map[string]int)}}
	x.bubble(func() {
		for {
			if r := x.run(nil); len(r.violations) > 0 {
				violated = r.violations
				return
			}
			if !x.backtrack() {
				return
			}
		}
	})
	return x, violated, func(out io.Writer) { x.bubble(func() { x.run(out) }) }
}

// run makes the choices of the stack, and after that the first that there are.
func (x *exploration) run(out io.Writer) *run {
	x.depth, x.asleep = 0, x.asleep[:0]
	r := x.play(x, out)
	if r.left {
		x.cut++
	} else {
		x.runs++
		r.judge()
	}
	return r
}

// choose implements chooser.
func (x *exploration) choose(enabled []choice) (choice, bool) {
	if x.depth == len(x.stack) {
		n := &node{enabled: enabled, asleep: slices.Clone(x.asleep)}
		if !n.next() {
			return 0, false
		}
		x.stack = append(x.stack, n)
	}
	n := x.stack[x.depth]
	if !slices.Contains(enabled, n.choice) {
		panic("the same choices lead elsewhere")
	}
	return n.choice, true
}

// chosen implements chooser.
func (x *exploration) chosen(t touches) {
	n := x.stack[x.depth]
	n.touches = t
	x.depth++
	x.asleep = x.asleep[:0]
	for _, m := range n.asleep {
		if (m.choice >= 0 || n.choice >= 0) && m.touches.commute(t) {
			x.asleep = append(x.asleep, m)
		}
	}
}

// backtrack has the next run make the last choice otherwise that can be, and
// reports whether there is one.
func (x *exploration) backtrack() bool {
	for len(x.stack) > 0 {
		n := x.stack[len(x.stack)-1]
		if n.asleep = append(n.asleep, n.move); n.next() {
			return true
		}
		x.stack = x.stack[:len(x.stack)-1]
	}
	return false
}
