package accuracy

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"weir/bench/internal/algorithms"
	"weir/bench/internal/report"
	"weir/bench/internal/traffic"
)

// Cloudflare's figures of 2017, of two counters (N=1) on real traffic.
const (
	cloudflareWrong = 0.00003 // of the requests
	cloudflareMean  = 0.06    // difference, relative
)

// A ScaleReport is what accuracy -scale measured. The same seed and number of
// requests give the same, but for the machine and the time it took.
type ScaleReport struct {
	Machine report.Machine `json:"machine"`
	Seed    uint64         `json:"seed"`
	Like    string         `json:"like,omitempty"` // whose traffic it is like
	Worked  time.Duration  `json:"worked_ns"`      // by all cores
	populationFigures
}

// Print writes the figures as a table, and what is comparable.
func (r *ScaleReport) Print(out io.Writer) {
	fmt.Fprintf(out, "%d requests from %d clients in %v of virtual time, limit %d a minute, seed %d; %.0f min of processor time, %s\n",
		r.Requests, r.Clients, r.Length, r.Limit, r.Seed, r.Worked.Minutes(), r.Machine.Go)
	fmt.Fprintf(out, "%d clients (%.2f%%) ask for more than the limit on average; %d never had more than the limit in a window\n",
		r.Above, 100*float64(r.Above)/float64(r.Clients), r.Below)
	header := "algorithm\twrong\tadmitted\tdenied\tmean\t"
	cells := func(d difference) (text string) {
		for _, n := range []int64{d.wrong(), d.WronglyAdmitted, d.WronglyDenied} {
			text += report.Percent(ratio(n, d.Requests)) + "\t"
		}
		return text + fmt.Sprintf("%.2f%%\t", 100*d.relative())
	}
	report.TableOf(out, "only admitted requests count, as weir runs by default", header+"of log\tlimited, below\t", r.Rows, func(row populationRow) string {
		return fmt.Sprintf("%s\t%s%.2f%%\t%d\t", row.Algorithm, cells(row.Feedback), 100*float64(row.Admitted)/float64(max(1, r.LogAdmitted)), row.BelowLimited)
	}, "")
	lines := report.Lines(r.Rows, func(row populationRow) string {
		if row.All.Requests == 0 {
			return ""
		}
		return row.Algorithm + "\t" + cells(row.All)
	})
	cloudflare := fmt.Sprintf("Cloudflare, 2017\t%s\t\t\t%.0f%%\t", report.Percent(cloudflareWrong), 100*cloudflareMean)
	report.Table(out, "every request counts, whatever was decided", header, append(lines, cloudflare))
	fmt.Fprint(out, `
wrong             share of all requests: those that were admitted although they and the true count are more than the limit, and those that
                  were denied although they fit
mean              of |estimate - true count|, as a part of the mean true count
of log            admitted, in relation to an exact log
limited, below    clients who never had more than the limit in a window, and were denied something
capped and the counting log judge by their limit: they have no figures with every request counted.
The last is the same whether denied requests count or not: up to the first denial all have been counted.
`+r.population()+`
Cloudflare (2017) measured two counters, which is N=1, on its own traffic: 400 million requests from 270,000 sources. That every request
counted there is an assumption; so is that its differences were taken in the same way.
`)
}

// population says what the clients are like.
func (r *ScaleReport) population() string {
	if r.Like != "" {
		return fmt.Sprintf(`The clients look at %s. How much they ask for is lognormal
with sigma %g, and far below the limit, but for %d clients, who ask for %v limits. Limit, sigma and these clients were chosen so that
N=1 is about as wrong as Cloudflare measured; for the other algorithms nothing was chosen. What they share with Cloudflare's traffic
beyond that isn't known.
`, traffic.Pages.Description, likeSigma, len(likeFew), likeFew)
	}
	var mix []string
	for _, m := range populationMix {
		mix = append(mix, fmt.Sprintf("%d are %s", m.share, m.Name))
	}
	return fmt.Sprintf(`Of each 20 clients %s; how much they ask for follows Zipf's law with exponent %g.
Comparable with Cloudflare's: the number of requests and of clients, and the algorithm. Not comparable: the traffic. Wrong decisions come
only from clients near their limit, and a mean difference from uneven ones; of both there are many here. accuracy -scale -like
cloudflare has as few as Cloudflare seems to have had.
`, strings.Join(mix, ", "), crowdExponent)
}

// Broken returns an error if an exact algorithm was wrong.
func (r *ScaleReport) Broken() error {
	var errs []error
	for _, row := range r.Rows {
		if algorithms.Named(row.Algorithm).Exact() && row.Feedback.WronglyAdmitted > 0 {
			errs = append(errs, fmt.Errorf("%s admitted %d requests above the limit", row.Algorithm, row.Feedback.WronglyAdmitted))
		}
	}
	return errors.Join(errs...)
}
