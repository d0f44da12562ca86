package api

import "weir/api/decide"

// A compactJSON is the rest of a body that is written as the Go client writes most: in ASCII
// without escapes, spaces and limits. It is read in a third of the time that jsontext takes, to
// which any other body is left.
type compactJSON struct {
	text   []byte
	failed bool
}

// batch decodes a batch of checks, and appends them. Each whose policy equals that of the check
// before it, or at first the given one, shares that string.
func (p *compactJSON) batch(checks []decide.Check, policy string) []decide.Check {
	p.expect(`{"checks":[`)
	more := true
	for ; more && !p.failed && len(checks) < decide.MaxBatch; more = p.accept(",") {
		checks = append(checks, p.check(policy))
		policy = checks[len(checks)-1].Policy
	}
	p.failed = p.failed || more
	p.expect(`]}`)
	return checks
}

// check decodes a check. If its policy equals the given one, it shares that string.
func (p *compactJSON) check(policy string) decide.Check {
	q := decide.Check{Cost: 1}
	p.expect(`{"policy":"`)
	if name := p.string(); string(name) != policy {
		policy = string(name)
	}
	q.Policy = policy
	p.expect(`,"client":"`)
	q.Client = string(p.string())
	if p.accept(`,"cost":`) {
		q.Cost = p.integer()
	}
	q.Settle = p.accept(`,"settle":true`)
	p.expect("}")
	return q
}

// settlement decodes a settlement that has the given cost unless it names one. The receipt is
// valid as long as the body.
func (p *compactJSON) settlement(cost int64) (receipt []byte, _ int64) {
	p.expect(`{"receipt":"`)
	receipt = p.string()
	if p.accept(`,"cost":`) {
		cost = p.integer()
	}
	p.expect("}")
	return receipt, cost
}

// accept reads text if it is next, and reports whether it is.
func (p *compactJSON) accept(text string) bool {
	if len(p.text) < len(text) || string(p.text[:len(text)]) != text {
		return false
	}
	p.text = p.text[len(text):]
	return true
}

// expect is accept of what has to be next.
func (p *compactJSON) expect(text string) { p.failed = p.failed || !p.accept(text) }

// string reads a string up to its end. It is valid as long as the body.
func (p *compactJSON) string() []byte {
	text := p.text
	i := 0
	for i < len(text) && literal[text[i]] {
		i++
	}
	p.text = text[i:]
	p.expect(`"`)
	return text[:i]
}

func (p *compactJSON) integer() (n int64) {
	digits := 0
	for ; digits < len(p.text) && p.text[digits] >= '0' && p.text[digits] <= '9'; digits++ {
		n = n*10 + int64(p.text[digits]-'0')
	}
	p.failed = p.failed || digits == 0 || digits > 18 || digits > 1 && p.text[0] == '0'
	p.text = p.text[digits:]
	return n
}

// ended reports whether all has been read.
func (p *compactJSON) ended() bool { return !p.failed && len(p.text) == 0 }

// literal are the bytes that stand in a string of JSON as they are, and for a character each.
var literal = func() (all [256]bool) {
	for c := ' '; c <= '~'; c++ {
		all[c] = c != '"' && c != '\\'
	}
	return all
}()

// isLiteral reports whether s stands in JSON as it is.
func isLiteral(s string) bool {
	for i := range len(s) {
		if !literal[s[i]] {
			return false
		}
	}
	return true
}
