package peers

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

//go:embed cases.txt
var casesText string

// A handPicked case is limits, and what is asked by them one after the other.
type handPicked struct {
	name, limits string
	steps        []step
}

// A step is a request, and its answer in the form of tell.
type step struct {
	text    string
	request *rls.RateLimitRequest
	answer  string // of both products
	own     string // of weir, where a document says that it is another
}

// readCases returns the cases of a text in the form of cases.txt. The domain of each has its
// number.
func readCases(text string) (all []handPicked, err error) {
	for i, part := range strings.Split(text, "\n== ")[1:] {
		name, body, _ := strings.Cut(part, "\n")
		c := handPicked{name: name}
		for line := range strings.Lines(body) {
			last := len(c.steps) - 1
			switch rest := strings.TrimSpace(line); {
			case strings.HasPrefix(line, "? "):
				request, err := readRequest(domainOf(i), rest[2:])
				if err != nil {
					return nil, fmt.Errorf("%s: %s: %w", name, rest, err)
				}
				c.steps = append(c.steps, step{text: rest[2:], request: request})
			case rest == "":
			case last < 0:
				c.limits += line
			case strings.HasPrefix(rest, "* "):
				c.steps[last].own = rest[2:]
			default:
				c.steps[last].answer = rest
			}
		}
		all = append(all, c)
	}
	return all, nil
}

func domainOf(number int) string { return fmt.Sprintf("case%d", number) }

// readRequest returns the request that a step is: its descriptors with ; between them, and
// before the first what is said of all.
func readRequest(domain, text string) (*rls.RateLimitRequest, error) {
	r := &rls.RateLimitRequest{Domain: domain}
	for part := range strings.SplitSeq(text, " ; ") {
		d := new(common.RateLimitDescriptor)
		for i, word := range strings.Fields(part) {
			name, value, _ := strings.Cut(word, "=")
			number, per, _ := strings.Cut(value, "/")
			n, err := strconv.ParseUint(number, 10, 32)
			switch {
			case name == "domain":
				r.Domain, d = value, nil
			case name == "addend" && err == nil:
				r.HitsAddend, d = uint32(n), nil
			case name == "hits" && err == nil:
				d.HitsAddend = wrapperspb.UInt64(n)
			case name == "limit" && err == nil:
				unit := typev3.RateLimitUnit(typev3.RateLimitUnit_value[strings.ToUpper(per)])
				d.Limit = &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: uint32(n), Unit: unit}
			case i > 0:
				return nil, fmt.Errorf("%q is nothing that a descriptor has", word)
			case word == "none":
				d = nil
			case word == "empty":
			default:
				for entry := range strings.SplitSeq(word, ",") {
					key, value, _ := strings.Cut(entry, "=")
					d.Entries = append(d.Entries, &common.RateLimitDescriptor_Entry{Key: key, Value: value})
				}
			}
		}
		if d != nil {
			r.Descriptors = append(r.Descriptors, d)
		}
	}
	return r, nil
}

// tell returns an answer in few words: its code, and for each descriptor its code, what
// remains and of how many.
func tell(r *rls.RateLimitResponse, err error) string {
	if err != nil {
		return fmt.Sprintf("%v: %s", status.Code(err), status.Convert(err).Message())
	}
	parts := make([]string, len(r.Statuses))
	for i, s := range r.Statuses {
		switch {
		case s.CurrentLimit != nil:
			parts[i] = fmt.Sprintf("%v %d/%d", s.Code, s.LimitRemaining, s.CurrentLimit.RequestsPerUnit)
			if s.CurrentLimit.Name != "" {
				parts[i] += " " + s.CurrentLimit.Name
			}
		case s.LimitRemaining > 0:
			parts[i] = "unlimited"
		default:
			parts[i] = "none"
		}
	}
	return fmt.Sprintf("%v: %s", r.OverallCode, strings.Join(parts, ", "))
}

// play asks all products what the cases ask, and objects where an answer isn't as the case has it,
// or differs otherwise.
func (p *panel) play(ctx context.Context, cases []handPicked) error {
	errs := make([]error, len(cases))
	var playing sync.WaitGroup
	for i, c := range cases {
		playing.Go(func() {
			for _, s := range c.steps {
				answers := p.ask(ctx, s.request)
				if errs[i] = ctx.Err(); errs[i] != nil {
					return
				}
				for j, got := range answers {
					want := s.answer
					if s.own != "" && !p.products[j].other {
						want = s.own
					}
					if told := tell(got.response, got.err); told != want {
						p.Errorf("%s: %s: %s answered %s, and should %s", c.name, s.text, p.products[j].name, told, want)
					}
				}
				if s.own == "" {
					p.compareAll(s.request, answers)
				}
				if errs[i] = p.awaitCounts(ctx); errs[i] != nil {
					return
				}
			}
		})
	}
	playing.Wait()
	return errors.Join(errs...)
}
