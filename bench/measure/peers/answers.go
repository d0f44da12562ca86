package peers

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"weir/bench/internal/report"
)

const (
	probeDomain = "probe"
	// answersDomains are random files, each of a domain of its own.
	answersDomains = 600
)

// compareAnswers has weir answer the hand-picked cases and, if the other is there, both answer
// those, random requests, and requests by the files of a folder.
func (j *jury) compareAnswers(ctx context.Context, rounds int, folder string) (*Answers, error) {
	report.Progress("comparing answers")
	if left := time.Hour - time.Since(time.Now().Truncate(time.Hour)); left < time.Minute { // all counts in one hour
		time.Sleep(left)
	}
	a := &Answers{Known: make(map[string]int)}
	cases, err := readCases(casesText)
	if err != nil {
		return nil, err
	}
	random := rand.New(rand.NewPCG(1, 2))
	domains := make([]*node, answersDomains)
	// Until April 2026 a quota never denied.
	files := map[string]string{"probe.yaml": fmt.Sprintf("domain: %s\ndescriptors:\n- {key: k, rate_limit: {unit: day, requests_per_unit: 0}, quota_mode: true}\n", probeDomain)}
	for i, c := range cases {
		a.HandPicked += len(c.steps)
		files[domainOf(i)+".yaml"] = fmt.Sprintf("domain: %s\ndescriptors:\n%s", domainOf(i), c.limits)
	}
	for i := range domains {
		domains[i] = randomNode(random, 0)
		files[fmt.Sprintf("d%d.yaml", i)] = fmt.Sprintf("domain: d%d\ndescriptors:\n%s", i, domains[i].yaml("  "))
	}
	p, err := j.startPanel(ctx, "answers", files)
	if err != nil {
		return nil, err
	}
	defer p.stop()
	probe := &rls.RateLimitRequest{Domain: probeDomain, Descriptors: []*common.RateLimitDescriptor{{Entries: []*common.RateLimitDescriptor_Entry{{Key: "k"}}}}}
	probed := p.ask(ctx, probe)[len(p.products)-1]
	if probed.err != nil {
		return nil, fmt.Errorf("%s: %w", p.products[len(p.products)-1].name, probed.err)
	}
	if a.OlderQuotas = probed.response.OverallCode == rls.RateLimitResponse_OK; a.OlderQuotas {
		cases = slices.DeleteFunc(cases, func(c handPicked) bool { return strings.Contains(c.limits, quotaMode) })
	}
	if err := p.play(ctx, cases, a); err != nil || j.ratelimit == "" {
		return a, err
	}
	err = p.askRandomly(ctx, domains, rounds, a)
	if err == nil && folder != "" {
		err = j.compareFiles(ctx, folder, a)
	}
	return a, err
}

// askRandomly asks all products as many random requests by each of the domains, which have
// their numbers.
func (p *panel) askRandomly(ctx context.Context, domains []*node, rounds int, a *Answers) error {
	randoms := make([]*rand.Rand, len(domains))
	for i := range randoms {
		randoms[i] = rand.New(rand.NewPCG(3, uint64(i)))
	}
	for range rounds {
		err := eachOf(len(domains), func(i int) error {
			if a.OlderQuotas && domains[i].quotas() {
				return nil
			}
			request := domains[i].request(randoms[i], fmt.Sprintf("d%d", i))
			a.compareAll(request, p.ask(ctx, request), p, false)
			a.mu.Lock()
			defer a.mu.Unlock()
			a.Requests++
			return ctx.Err()
		})
		if err == nil {
			err = p.settle(ctx)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// eachOf calls f with each number below n, some at once.
func eachOf(n int, f func(int) error) error {
	errs := make([]error, askingAtOnce)
	var asking sync.WaitGroup
	for first := range askingAtOnce {
		asking.Go(func() {
			for i := first; i < n && errs[first] == nil; i += askingAtOnce {
				errs[first] = f(i)
			}
		})
	}
	asking.Wait()
	return errors.Join(errs...)
}
