package memcached

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"weir/counters"
	"weir/counters/memcached/pipeline"
)

// AddMany implements counters.ManyStore. It has a connection of its own to each
// server, so that single operations don't queue behind it.
func (s *Store) AddMany(ctx context.Context, keys []string, begin func(i int, to []counters.Addition) ([]counters.Addition, counters.Turn), done func(i int, added []counters.Added, err error) (more bool)) {
	s.doMany(keys, &many{deadline: deadline(ctx), tasks: &additions{begin, done}, verb: "get"})
}

// SwapMany implements counters.ManyStateStore, on the connections of AddMany.
func (s *Store) SwapMany(ctx context.Context, keys []string, begin func(i int) (counters.Replacement, counters.Turn), done func(i int, now counters.State, swapped bool, err error) (again bool)) {
	s.doMany(keys, &many{deadline: deadline(ctx), tasks: &replacements{begin, done}, verb: "gets"})
}

func (s *Store) doMany(keys []string, many *many) {
	m := s.members.Load()
	if len(m.backends) == 0 {
		for i := range keys {
			many.tasks.leave(i, errNoServers)
		}
		return
	}
	shares := make([]share, len(m.backends))
	for i := range shares {
		shares[i].waiting = make([]int, 0, len(keys)/len(shares))
	}
	for i, key := range keys {
		share := &shares[m.ring.pick(key)]
		share.waiting = append(share.waiting, i)
	}
	for i := range shares {
		share := &shares[i]
		share.many, share.backend = many, m.backends[i]
		if len(share.waiting) == len(keys) {
			share.run()
		} else if len(share.waiting) > 0 {
			many.running.Go(counters.Grown(share.run))
		}
	}
	many.running.Wait()
	if many.cause != nil {
		panic(many.cause)
	}
}

// tasks are what an AddMany or a SwapMany does, by the numbers of their keys.
type tasks interface {
	// begin begins the i-th, which c is about to send, and adds it to p if its turn
	// is Now.
	begin(c *session, p *piece, i int) counters.Turn
	// read takes over what c has got of what the tasks of p read.
	read(c *session, p *piece)
	// end ends the j-th of p, by the replies that c has got. If failed isn't nil,
	// there are none, and it returns the error of the command with the given
	// number. end reports whether the task is to be begun again.
	end(c *session, p *piece, j int, failed func(command int) error) (again bool)
	// leave ends the i-th, which hasn't begun, with err.
	leave(i int, err error)
}

// many is one AddMany or SwapMany.
type many struct {
	deadline time.Time
	tasks    tasks
	verb     string         // get or gets, as what they read needs
	running  sync.WaitGroup // goroutines of shares

	panicked sync.Once
	cause    any
}

// rescue keeps a panic for the goroutine of the caller.
func (m *many) rescue() {
	if cause := recover(); cause != nil {
		m.panicked.Do(func() { m.cause = cause })
	}
}

// A share is the tasks for one server.
type share struct {
	*many
	backend *backend

	mu      sync.Mutex
	waiting []int // the numbers of tasks that haven't begun
	again   []int // of tasks to be begun once more, before those
	later   []int // of tasks whose turn hasn't come yet
	senders int   // how many goroutines that send may still be begun
	sending sync.WaitGroup
}

// A piece is tasks that are sent together, and their commands. All that they read is in one get at
// the end, as Memcached sends the replies that it has with each get.
type piece struct {
	numbers  []int    // of the tasks
	commands []int    // of each addition, or replacement, the number of the command whose reply says if it was done
	text     []byte   // the commands
	count    int      // of commands, without gets
	keys     []string // that are read
	unread   error    // why they weren't
	values   int      // bytes of keys, and about as many as are read
	last     int      // bytes of the last task

	additions    []counters.Addition
	ends         []int            // where in additions those of each task end
	added        []counters.Added // what has become of those of one task
	counts       []int64          // of keys
	replacements []counters.Replacement
	states       []counters.State // of keys
	dealt        int              // how many of counts, or states
	newest       uint64           // on which replacements may go out
}

func (p *piece) reset(text []byte) {
	clear(p.keys)
	clear(p.additions)
	clear(p.added)
	clear(p.replacements)
	clear(p.states)
	*p = piece{
		numbers: p.numbers[:0], commands: p.commands[:0], text: text[:0], keys: p.keys[:0],
		additions: p.additions[:0], ends: p.ends[:0], added: p.added[:0], counts: p.counts[:0],
		replacements: p.replacements[:0], states: p.states[:0],
	}
}

// reads notes that keys are read.
func (p *piece) reads(keys ...string) {
	p.keys = append(p.keys, keys...)
	for _, key := range keys {
		p.values += len(key) + 1
	}
}

// ask appends the gets of what is read.
func (p *piece) ask(verb string) { p.text = appendGets(p.text, verb, p.keys) }

// size returns how many bytes are sent, with the values that come back.
func (p *piece) size() int { return len(p.text) + p.values }

// full reports whether there is no room for another task like the last: what is
// more than maxPiece would take the place of another piece.
func (p *piece) full() bool { return p.size()+p.last > maxPiece }

var pieces = sync.Pool{New: func() any { return new(piece) }}

// run sends all that waits, and then again and again what was to come later, with a
// pause of about as long as a piece is under way.
func (s *share) run() {
	defer s.rescue()
	for {
		s.senders = s.backend.budget.pieces() - 1
		s.send()
		s.sending.Wait()
		if len(s.later) == 0 {
			return
		}
		left := time.Until(s.deadline)
		s.waiting, s.later = s.later, s.waiting[:0]
		if left <= 0 {
			s.leave(errOverdue)
			return
		}
		time.Sleep(min(s.backend.budget.pause(), left))
	}
}

// send sends pieces, one after the other, until nothing waits. What a piece leaves
// over, another send takes up beside it, if one may still be begun.
func (s *share) send() {
	defer s.rescue()
	p := pieces.Get().(*piece)
	for s.waits() {
		c, alone, err := s.enter()
		if c == nil {
			s.leave(err)
			break
		}
		s.sendPiece(c, p, alone)
	}
	p.reset(nil)
	pieces.Put(p)
}

// waits reports whether there is more to send.
func (s *share) waits() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.again)+len(s.waiting) > 0
}

// enter waits until another piece may be sent, and returns a session for it and whether no
// piece is under way. If it returns no session, all waiting tasks end with the error.
func (s *share) enter() (c *session, alone bool, err error) {
	b := s.backend
	ok, alone := b.budget.acquire(s.deadline)
	if !ok {
		return nil, false, errOverdue
	}
	if err = b.refuse(s.deadline); err == nil {
		if c = b.get(b.laneOfMany(), s.deadline); c == nil {
			err = counters.ErrNotAdded // the server has left
		}
	}
	if err != nil {
		b.budget.give(maxPiece)
	}
	return c, alone, err
}

// leave ends all that wait with err.
func (s *share) leave(err error) {
	s.mu.Lock()
	waiting := append(s.again, s.waiting...)
	s.again, s.waiting = nil, nil
	s.mu.Unlock()
	for _, i := range waiting {
		s.tasks.leave(i, err)
	}
}

// sendPiece does the tasks of the next piece with c, while others are under way
// or not.
func (s *share) sendPiece(c *session, p *piece, alone bool) {
	defer c.release()
	var failed func(command int) error
	if err := s.exchange(c, p, alone); err != nil {
		failed = c.unansweredTogether(err)
	} else {
		s.tasks.read(c, p)
	}
	for j, i := range p.numbers {
		if s.tasks.end(c, p, j, failed) {
			s.mu.Lock()
			s.again = append(s.again, i)
			s.mu.Unlock()
		}
	}
}

// exchange makes p the next piece, sends it, and waits for its replies. Then
// others may be under way.
func (s *share) exchange(c *session, p *piece, alone bool) error {
	budget, acquired := &s.backend.budget, maxPiece
	defer func() { budget.give(acquired) }()
	s.next(c, p)
	if len(p.numbers) == 0 {
		return nil
	}
	size := p.size()
	budget.give(maxPiece - size) // less than nothing if the last is a large one
	acquired = size
	p.ask(s.verb)
	begun := time.Now()
	err := c.exchange(p.newest, p.text)
	if errors.Is(err, pipeline.ErrOtherSocket) {
		p.resend()
		p.ask(s.verb)
		err = c.exchange(0, p.text)
	}
	if err == nil {
		budget.measured(time.Since(begun), alone)
	}
	return err
}

// next makes p the next piece, which c is about to send.
func (s *share) next(c *session, p *piece) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.reset(c.text)
	for queue := &s.again; !p.full(); {
		if len(*queue) == 0 {
			if queue = &s.waiting; len(*queue) == 0 {
				break
			}
		}
		i := (*queue)[0]
		*queue = (*queue)[1:]
		before := p.size()
		switch s.tasks.begin(c, p, i) {
		case counters.Now:
			p.numbers = append(p.numbers, i)
			p.last = p.size() - before
		case counters.Later:
			s.later = append(s.later, i)
		}
	}
	if len(s.waiting) > 0 && s.senders > 0 {
		s.senders--
		s.sending.Go(counters.Grown(s.send))
	}
}

// additions are the tasks of an AddMany.
type additions struct {
	begins func(i int, to []counters.Addition) ([]counters.Addition, counters.Turn)
	done   func(i int, added []counters.Added, err error) (more bool)
}

func (t *additions) begin(_ *session, p *piece, i int) counters.Turn {
	begun, turn := t.begins(i, p.additions)
	if turn != counters.Now {
		return turn
	}
	for _, a := range begun[len(p.additions):] {
		if a.Key != "" {
			p.text = appendAddition(p.text, a)
			p.count += incrNumber(a) + 1
		}
		p.commands = append(p.commands, p.count-1)
		p.reads(a.Read...)
	}
	p.additions, p.ends = begun, append(p.ends, len(begun))
	return turn
}

func (t *additions) read(c *session, p *piece) {
	p.counts = slices.Grow(p.counts[:0], len(p.keys))[:len(p.keys)]
	p.unread = c.parseGets(p.count, p.keys, intoCounts(p.counts, nil))
}

func (t *additions) end(c *session, p *piece, j int, failed func(command int) error) (again bool) {
	first := 0
	if j > 0 {
		first = p.ends[j-1]
	}
	p.added = p.added[:0]
	for k := first; k < p.ends[j]; k++ {
		switch a := p.additions[k]; {
		case failed == nil:
			p.added = append(p.added, c.added(p, a, p.commands[k]))
		case a.Key == "":
			p.added = append(p.added, counters.Added{Err: failed(p.count)})
		default:
			p.added = append(p.added, counters.Added{Err: failed(p.commands[k])})
		}
	}
	return t.done(p.numbers[j], p.added, nil)
}

// added returns what was answered to the next addition of p, whose incr or decr, if it has
// one, was the command of the given number.
func (c *session) added(p *piece, a counters.Addition, command int) counters.Added {
	copy(a.Counts, p.counts[p.dealt:])
	p.dealt += len(a.Read)
	var unread error // what others read is theirs
	if len(a.Read) > 0 {
		unread = cmp.Or(p.unread, checkCounts(a.Read, a.Counts))
	}
	if a.Key == "" {
		return counters.Added{Err: c.translate(unread)}
	}
	n, found, err := c.parseAddition(a, command)
	if found && err == nil {
		err = unread
	}
	switch {
	case err != nil:
		err = c.translate(err)
	case found, a.Delta < 0:
	case a.Have:
		n, err = 0, counters.ErrLost
	default: // it is gone as soon as it was made
		n, err = 0, counters.ErrNotAdded
	}
	return counters.Added{Count: n, Err: err}
}

func (t *additions) leave(i int, err error) { t.done(i, nil, err) }

// replacements are the tasks of a SwapMany.
type replacements struct {
	begins func(i int) (counters.Replacement, counters.Turn)
	done   func(i int, now counters.State, swapped bool, err error) (again bool)
}

func (t *replacements) begin(c *session, p *piece, i int) counters.Turn {
	r, turn := t.begins(i)
	if turn != counters.Now {
		return turn
	}
	if r.Old.Exists() {
		if newest := socketOf(r.Old.Life); r.Old.Life>>lifeShift != c.backend.number || newest < c.open() {
			r.Value = nil
		} else if p.newest == 0 || newest < p.newest {
			p.newest = newest
		}
	}
	p.replacements = append(p.replacements, r)
	p.replace(r)
	return turn
}

// replace appends the commands of a replacement.
func (p *piece) replace(r counters.Replacement) {
	p.commands = append(p.commands, p.count)
	if r.Value != nil {
		p.text = appendStore(p.text, r.Key, expiration(r.TTL), r.Old.Version, r.Value)
		p.count++
	}
	if isRead(r) {
		p.reads(r.Key)
		p.values += max(r.Size, len(r.Value))
	}
}

// isRead reports whether what is there after a replacement is read.
func isRead(r counters.Replacement) bool { return !r.Blind || r.Value == nil }

func (t *replacements) read(c *session, p *piece) {
	p.states = slices.Grow(p.states[:0], len(p.keys))[:len(p.keys)]
	p.unread = c.parseStates(p.count, p.keys, p.states)
}

func (t *replacements) end(c *session, p *piece, j int, failed func(command int) error) (again bool) {
	i, r := p.numbers[j], &p.replacements[j]
	var now counters.State
	swapped := false
	var err error
	switch {
	case failed == nil:
		if r.Value != nil {
			swapped, err = c.parseSwap(p.commands[j])
		}
		if isRead(*r) {
			if err = cmp.Or(err, p.unread); err == nil {
				now = p.states[p.dealt]
			}
			p.dealt++
		}
		swapped = swapped && err == nil
		err = c.translate(err)
	case r.Value == nil:
		err = failed(p.count)
	default:
		err = failed(p.commands[j])
	}
	if err != nil && r.Value == nil {
		err = fmt.Errorf("%w: %w", counters.ErrNotSent, err) // it was only to be read
	}
	return t.done(i, now, swapped, err)
}

func (t *replacements) leave(i int, err error) { t.done(i, counters.State{}, false, err) }

// resend makes the commands of replacements anew, for any socket: without what was to replace
// a version that was read before. Additions go out on any socket.
func (p *piece) resend() {
	p.text, p.commands, p.keys, p.count, p.values = p.text[:0], p.commands[:0], p.keys[:0], 0, 0
	for j := range p.replacements {
		r := &p.replacements[j]
		if r.Old.Exists() {
			r.Value = nil
		}
		p.replace(*r)
	}
}

// unansweredTogether is unanswered for the tasks of a piece that has failed with
// err. It returns the error of the one whose command has the given number.
func (c *session) unansweredTogether(err error) func(number int) error {
	conn := c.broken
	err = c.unanswered(err, 0, func([]byte) error { return nil })
	all, ok := err.(*counters.Unanswered)
	if !ok {
		return func(int) error { return err }
	}
	return func(number int) error {
		return &counters.Unanswered{Err: all.Err, Await: func(f func(err error)) {
			all.WhenKnown(func(err error) {
				if err == nil {
					err = outcomeOf(conn.Reply(number))
				}
				f(err)
			})
		}}
	}
}
