package e2e

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/heapprofiler"
	"github.com/chromedp/cdproto/memory"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/cmd/server/servertest"
	"weir/counters/memcachedtest"
)

// A browser is a tab of Chromium.
type browser struct {
	t   *testing.T
	ctx context.Context
}

// chromium has the Chromium of all tests, started by the first that needs one.
var chromium struct {
	sync.Mutex
	ctx context.Context
	end func()
}

// startChromium returns what tabs of Chromium are made of.
func startChromium() (context.Context, error) {
	chromium.Lock()
	defer chromium.Unlock()
	if chromium.ctx != nil {
		return chromium.ctx, nil
	}
	program, err := exec.LookPath("chromium")
	if err != nil {
		return nil, fmt.Errorf("this test needs chromium; make setup installs it: %w", err)
	}
	allocator, cancel := chromedp.NewExecAllocator(context.Background(), append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(program), chromedp.NoSandbox, chromedp.DisableGPU)...)
	ctx, closed := chromedp.NewContext(allocator)
	if err := chromedp.Do(ctx); err != nil {
		cancel()
		return nil, err
	}
	chromium.ctx, chromium.end = ctx, func() {
		_ = chromedp.Cancel(ctx)
		closed()
		cancel()
	}
	return ctx, nil
}

// endChromium ends what startChromium has started.
func endChromium() {
	if chromium.end != nil {
		chromium.end()
	}
}

// startBrowser opens a tab, with storage of its own, until the test ends. Nothing may be said on
// its console, but that an answer had an error's status, or that there was none, and what has
// one of the expected parts.
func startBrowser(t *testing.T, expected ...string) *browser {
	t.Helper()
	all, err := startChromium()
	require.NoError(t, err)
	ctx, closed := chromedp.NewContext(all, chromedp.WithNewBrowserContext())
	b := &browser{t, ctx}
	messages := chromedp.Console(ctx)
	var said []string
	var listening sync.WaitGroup
	listening.Go(func() {
		for message, err := range messages {
			if err == nil && !slices.ContainsFunc(append(expected, "Failed to load resource"), func(part string) bool { return strings.Contains(message.Text, part) }) {
				said = append(said, message.Text)
			}
		}
	})
	t.Cleanup(func() {
		assert.NoError(t, chromedp.Cancel(ctx))
		closed()
		listening.Wait()
		assert.Empty(t, said)
	})
	b.do(chromedp.EmulateViewport(1000, 900))
	return b
}

func (b *browser) do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, servertest.Patience)
	defer cancel()
	require.NoError(b.t, chromedp.Do(ctx, actions...))
}

// value returns that of an expression in the page of a browser.
func value[T any](b *browser, expression string) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, servertest.Patience)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression))
	require.NoError(b.t, err, expression)
	return v
}

// shows waits until an expression is true in the page.
func (b *browser) shows(expression string) {
	b.t.Helper()
	for end := time.Now().Add(servertest.Patience); !value[bool](b, "Boolean("+expression+")"); time.Sleep(20 * time.Millisecond) {
		require.True(b.t, time.Now().Before(end), "%s, in a page that says\n%s", expression, value[string](b, "document.body.innerText"))
	}
}

// press clicks what a selector finds, when it is seen: wherever that is, as what comes in
// above it may move it.
func (b *browser) press(selector string) {
	b.t.Helper()
	b.shows(fmt.Sprintf("document.querySelector(%q)?.checkVisibility()", selector))
	value[bool](b, fmt.Sprintf("document.querySelector(%q).click() === undefined", selector))
}

// textIs is an expression that is true while an element's text has a part.
func textIs(id, part string) string {
	quoted, _ := json.Marshal(part)
	return fmt.Sprintf("document.getElementById(%q)?.checkVisibility() && document.getElementById(%q).textContent.includes(%s)", id, id, quoted)
}

// looksAt opens the page of a service at a client.
func (b *browser) looksAt(s servertest.Service, policy, client string) {
	b.t.Helper()
	b.do(chromedp.Navigate(s.URL + "/console/#" + url.Values{"policy": {policy}, "client": {client}}.Encode()))
}

// changes presses the button that does so, and confirms.
func (b *browser) changes(button string) {
	b.t.Helper()
	b.press("#actions button[data-do=" + button + "]")
	b.press("#confirm-do")
	b.shows(textIs("done", ": done."))
}

// blocked reports whether a check of a client is denied as the client is blocked.
func blocked(t *testing.T, p *process, policy, client string) bool {
	a := p.Check(t, policy, client, 1)
	return a.Status == http.StatusTooManyRequests && len(a.Limits) == 0
}

// A customer gets 429: who it is, why, and what helps, over three instances.
func TestConsoleFromTheCauseToTheCure(t *testing.T) {
	t.Parallel()
	memcached := memcachedtest.Start(t)
	instances := startProcesses(t, []string{memcached.Addr, memcached.Addr, memcached.Addr}, "-console")
	for range 105 {
		instances[0].Check(t, "sliding-1s", "gold-co", 1)
	}
	b := startBrowser(t)
	b.looksAt(instances[0].Service, "sliding-1s", "")
	b.shows(textIs("top-denied", "gold-co 5"))
	for range 3 {
		instances[1].Check(t, "sliding-1s", "gold-co", 1)
	}
	b.shows(textIs("top-denied", "gold-co 8"))
	b.shows(textIs("fleet", "3 instances: "))
	b.press("#top-denied a")
	b.shows(textIs("verdict", "Denied by sliding-window; admitted again in"))
	b.shows(`document.querySelector("#limits svg").getAttribute("aria-label").startsWith("100 of 100 in use, in ")`)
	stored := 0
	require.Eventually(t, func() bool { // as Memcached leaves out keys that it is asked for
		stored = 0
		for _, key := range keysOfClients(memcached) {
			if regexp.MustCompile(`gold-co_\d+$`).MatchString(key) {
				n, err := strconv.Atoi(strings.TrimSpace(memcached.Do("get "+key, "END")[1]))
				require.NoError(t, err)
				stored += n
			}
		}
		return stored == 100
	}, servertest.Patience, 20*time.Millisecond)
	assert.Equal(t, stored, value[int](b, `[...document.querySelectorAll("#limits .bar title")].reduce((sum, e) => sum + parseInt(e.textContent), 0)`), "bars are what Memcached has")

	b.changes("block")
	for _, p := range instances {
		require.Eventually(t, func() bool { return blocked(t, p, "sliding-1s", "gold-co") }, servertest.Patience, 20*time.Millisecond)
	}
	b.shows(textIs("verdict", "Blocked until"))
	b.shows(textIs("overrides", "gold-co"))
	b.changes("end")
	b.shows(textIs("verdict", "Denied by sliding-window")) // the buttons have moved
	b.changes("reset")
	b.shows(textIs("verdict", "Admitted; 100 of 100 remain by sliding-window."))
	for _, p := range instances {
		require.Eventually(t, func() bool { return p.Check(t, "sliding-1s", "gold-co", 1).Allowed }, servertest.Patience, 20*time.Millisecond)
	}
	b.press("#actions button[data-do=raise]")
	b.shows(`document.querySelector("#confirm-limits input")`)
	// Cancelled, and asked for again at once: what is meant then is done, once.
	value[bool](b, `document.getElementById("confirm-cancel").click(), document.querySelector("#actions button[data-do=raise]").click(), true`)
	b.shows(`document.activeElement.name === "sliding-window"`)
	b.do(chromedp.KeyEvent("500"), chromedp.KeyEvent(kb.Enter)) // in the place of what was there
	b.shows(textIs("done", "Give gold-co other limits for 1 h: done."))
	b.shows(textIs("verdict", "of 500 remain by sliding-window."))

	b.do(chromedp.EmulateViewport(375, 700))
	assert.LessOrEqual(t, value[int](b, "document.documentElement.scrollWidth"), 375, "on a telephone nothing is cut off")

	// By the keyboard alone: from the client's field to the first button.
	b.do(chromedp.Focus(chromedp.CSS("#client")), chromedp.KeyEvent(kb.Tab), chromedp.KeyEvent(kb.Tab), chromedp.KeyEvent(kb.Enter))
	b.shows(textIs("confirm-title", "Reset gold-co?"))
	b.do(chromedp.KeyEvent(kb.Escape))
	b.shows(`document.activeElement.dataset.do === "reset"`)
	assert.True(t, instances[1].Check(t, "sliding-1s", "gold-co", 1).Limits[0].Remaining < 499, "it wasn't reset")

	b.press("#actions button[data-do=reset]")
	memcached.Kill()
	b.press("#confirm-do")
	b.shows(textIs("done", "Reset gold-co: done. Note: in this instance alone, until the store answers."))
	b.shows(`document.getElementById("store").textContent.includes("down")`)
	instances[0].terminate(t)
	b.shows(textIs("trouble", "weir can't be reached"))
}

// Names of clients are whatever callers send. None becomes part of the page, each is found,
// blocked and let go, and none stands for more clients than itself.
func TestConsoleShowsHostileNames(t *testing.T) {
	t.Parallel()
	p := startProcess(t, "-console")
	b := startBrowser(t)
	names := []string{
		`<img src=x onerror="document.title='hacked'">`, `</script><script>alert(1)</script>`, "a/b", "%2F", "dir/../x?y#z",
		"evil\u202eoc-dlog", "line\nbreak\ttab\x00", strings.Repeat("long", 256), "a&client=b", "'\"`${x}", `"quoted"`, `"`, " space ",
		"*", "team:*", "a*b", strings.Repeat("*", 1024), "10.0.0.0/8", "10.0.0.1/8", "::/0", "::ffff:10.9.8.7", "10.9.8.7", "2001:DB8::1",
	}
	for _, name := range names {
		p.Check(t, "log", name, 1) // which stays for a minute, whenever that began
		b.looksAt(p.Service, "log", name)
		b.shows(textIs("verdict", "Admitted; 99 of 100 remain"))
		assert.NotContains(t, value[string](b, `document.getElementById("because").textContent`), "Counted as ~", "a hash in the store's keys tells nobody whom it is of")
		b.changes("block")
		require.True(t, blocked(t, p, "log", name), "%q", name)
		for _, other := range []string{"another", "team:a", "10.1.2.3", "2001:db8::2", "aXb", "quoted", "space"} {
			require.False(t, blocked(t, p, "log", other), "%q by %q", other, name)
		}
		b.shows(textIs("verdict", "Blocked until"))
		b.changes("end")
		require.False(t, blocked(t, p, "log", name), "%q", name)
		require.Zero(t, overrides(t, p, "log"))
	}
	for range 2 {
		p.Check(t, "log", names[0], 1)
		p.Check(t, "log", "evil\u202eoc-dlog", 1)
	}
	// The list of who asks most shows them, and what turns text around as an escape.
	b.shows(textIs("top-allowed", `evil\u{202e}oc-dlog`))
	b.shows(textIs("top-allowed", `<img src=x onerror="document.title='hacked'">`))
	assert.Empty(t, value[string](b, `[...document.querySelectorAll("img, iframe, script:not([src])")].map((e) => e.outerHTML).join()`))
	assert.NotEqual(t, "hacked", value[string](b, "document.title"))
}

// A client of a header is blocked also where its name is an address: such a header may be how a
// proxy tells whom it asks about.
func TestConsoleBlocksAddressesInHeaders(t *testing.T) {
	t.Parallel()
	config := servertest.WriteFile(t, "policies.yaml", "policies:\n  edge:\n    identify: [header:X-Client]\n    limits: [{name: per-minute, algorithm: sliding_log, limit: 100, window: 1m}]\n")
	p := startProcess(t, "-console", "-config", config)
	b := startBrowser(t)
	for _, name := range []string{"203.0.113.9", "2001:db8::1"} {
		status := func() int {
			request, err := http.NewRequest(http.MethodGet, p.URL+"/v1/auth/edge", nil)
			require.NoError(t, err)
			request.Header.Set("X-Client", name)
			response, err := http.DefaultClient.Do(request)
			require.NoError(t, err)
			require.NoError(t, response.Body.Close())
			return response.StatusCode
		}
		require.Equal(t, http.StatusOK, status())
		b.looksAt(p.Service, "edge", name)
		b.shows(textIs("verdict", "Admitted; 99 of 100 remain"))
		b.changes("block")
		assert.Equal(t, http.StatusTooManyRequests, status(), name)
		b.shows(textIs("verdict", "Blocked until"))
		b.changes("end")
		assert.Equal(t, http.StatusOK, status(), name)
	}
}

// An override for more clients than one can be ended from its row, and from the view of a client
// that it holds for. A thousand overrides are shown.
func TestConsoleEndsOverridesOfMany(t *testing.T) {
	t.Parallel()
	p := startProcess(t, "-console")
	override := func(key, body string) {
		t.Helper()
		status, _, answer, err := p.Send(http.MethodPut, "/v1/policies/fixed/overrides/"+url.PathEscape(key), "application/json", body)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, status, "%s", answer)
	}
	for i := range 998 {
		override(fmt.Sprint("client-", i), `{"exempt":true,"for":"1h","reason":"<b>"}`)
	}
	override("10.0.0.0/8", `{"blocked":true,"for":"1h"}`)
	override("team:*", `{"blocked":true,"for":"1h","reason":"`+strings.Repeat("long", 37)+`"}`)
	b := startBrowser(t)
	b.looksAt(p.Service, "fixed", "10.1.2.3")
	b.shows(textIs("verdict", "Blocked until"))
	b.shows(textIs("because", "An override for every address in 10.0.0.0/8 holds: blocked."))
	b.shows(`document.querySelectorAll("#overrides tbody tr").length === 1000`)
	assert.Equal(t, 1, value[int](b, `((what) => { what.selectNodeContents(document.querySelector("#overrides tr:last-child td:nth-child(2)")); return what.getClientRects().length; })(document.createRange())`), "\"blocked\" is on one line")
	b.press("#actions button[data-do=exempt]")
	b.press("#confirm-do")
	b.shows(textIs("done", "there are 1000 overrides"))
	b.press("#end")
	b.shows(textIs("confirm-title", "End the override of every address in 10.0.0.0/8?"))
	b.press("#confirm-do")
	b.shows(textIs("verdict", "Admitted; 100 of 100 remain"))
	assert.True(t, blocked(t, p, "fixed", "team:a"))
	b.shows(`document.querySelectorAll("#overrides tbody tr").length === 999`)
	b.press("#overrides tr:last-child button")
	b.shows(textIs("confirm-title", "End the override of every client that begins with “team:”?"))
	b.press("#confirm-do")
	b.shows(`document.querySelectorAll("#overrides tbody tr").length === 998`)
	assert.False(t, blocked(t, p, "fixed", "team:a"))
}

// No browser asks for a path that has a part . or .. as it is written: it takes that for another.
func TestConsoleEndsOverridesOfDots(t *testing.T) {
	t.Parallel()
	p := startProcess(t, "-console")
	b := startBrowser(t)
	for _, name := range []string{".", ".."} {
		status, _, answer, err := p.Send(http.MethodPut, "/v1/policies/fixed/overrides/"+url.PathEscape(strconv.Quote(name)), "application/json", `{"blocked":true,"for":"1h"}`)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, status, "%s", answer)
		b.looksAt(p.Service, "fixed", "")
		b.shows(fmt.Sprintf("document.querySelector('#overrides tbody td')?.title === %q", name)) // the row of the name before is gone
		b.press("#overrides tbody button")
		b.press("#confirm-do")
		b.shows(textIs("done", "End the override of "+name+": done."))
		require.Zero(t, overrides(t, p, "fixed"))
		b.looksAt(p.Service, "fixed", name) // not at another
		b.shows(textIs("trouble", "no browser can ask for a client that is called "+name))
		b.shows(`!document.getElementById("state").checkVisibility()`)
	}
}

// Who is blocked or exempt has no limits that could be others.
func TestConsoleOffersOtherLimitsWhereThereAreSome(t *testing.T) {
	t.Parallel()
	p := startProcess(t, "-console")
	b := startBrowser(t)
	const offers = `document.querySelector("#actions button[data-do=raise]").checkVisibility()`
	b.looksAt(p.Service, "fixed", "c")
	b.shows(textIs("verdict", "Admitted"))
	b.shows(offers)
	b.changes("block")
	b.shows(textIs("verdict", "Blocked until"))
	require.False(t, value[bool](b, offers))
	b.changes("end")
	b.shows(textIs("verdict", "Admitted"))
	b.shows(offers)
}

// What is shown is told as what it is: places as so many at once, taken or not, a block that
// shadow mode lets pass, and overrides as of the policy that has them.
func TestConsoleTellsWhatItShows(t *testing.T) {
	t.Parallel()
	p := startProcess(t, "-console", "-config", servertest.WriteFile(t, "policies.yaml", `policies:
  jobs: {limits: [{name: in-flight, algorithm: concurrency, limit: 4, lease: 1m}]}
  trial: {mode: shadow, limits: [{algorithm: fixed_window, limit: 1, window: 1m}], clients: {abuser: {blocked: true}}}
`))
	b := startBrowser(t)
	b.looksAt(p.Service, "jobs", "c")
	b.shows(textIs("limits", "in-flight (concurrency), 4 at once: 4 remain"))
	b.shows(textIs("limits", "A bar for each place that is taken"))
	b.shows(`document.querySelector("#limits svg").getAttribute("aria-label") === "0 places taken of 4"`)
	_, _, body, err := p.Send(http.MethodPost, "/v1/check", "application/json", `{"policy":"jobs","client":"c","cost":3,"settle":true}`)
	require.NoError(t, err)
	require.Contains(t, string(body), "receipt")
	b.shows(`document.querySelector("#limits svg").getAttribute("aria-label") === "3 places taken of 4"`)
	b.shows(`document.querySelectorAll("#limits .bar").length === 3`)
	b.shows(textIs("now-title", "Now, by policy jobs"))
	b.looksAt(p.Service, "trial", "abuser")
	b.shows(textIs("verdict", "Admitted only because the policy is in shadow mode; it is blocked."))
	b.shows(textIs("overrides-title", "Overrides of policy trial"))
	b.shows(textIs("now-title", "Now, by policy trial"))
	b.looksAt(p.Service, "none", "abuser")
	b.shows(textIs("trouble", "there is no policy"))
	assert.Equal(t, "Overrides of policy trial", value[string](b, `document.getElementById("overrides-title").textContent`))
}

// After a change of policy or client the page shows nothing of the one before: neither how often
// the other policy denied a client, nor that a look was given up.
func TestConsoleLooksElsewhere(t *testing.T) {
	t.Parallel()
	p := startProcess(t, "-console")
	for range 103 {
		p.Check(t, "fixed", "c", 1)
	}
	b := startBrowser(t)
	b.looksAt(p.Service, "fixed", "c")
	b.shows(textIs("because", "3 times denied"))
	goTo := func(hash string) { value[bool](b, fmt.Sprintf("Boolean(location.hash = %q)", hash)) }
	goTo("policy=default&client=c")
	b.shows(`document.getElementById("policy").value === "default" && document.getElementById("state").checkVisibility()`)
	assert.NotContains(t, value[string](b, `document.getElementById("because").textContent`), "times")

	// Answers take longer than it takes to look elsewhere.
	value[bool](b, `((real, trouble) => {
		window.asked = 0;
		window.fetch = (...all) => { asked++; return new Promise((go) => setTimeout(go, 1000)).then(() => real(...all)); };
		window.troubles = [];
		new MutationObserver(() => { if (!trouble.hidden) troubles.push(trouble.textContent); }).observe(trouble, { attributes: true });
		return true;
	})(window.fetch, document.getElementById("trouble"))`)
	goTo("policy=default&client=d")
	b.shows("asked > 0")
	goTo("policy=default&client=e")
	b.shows(`document.title === "weir: e"`)
	b.shows(textIs("verdict", "Admitted"))
	assert.Empty(t, value[[]string](b, "troubles"))
}

// overrides returns how many a policy has.
func overrides(t *testing.T, p *process, policy string) int {
	var list struct{ Overrides []struct{ Client string } }
	_, body := p.Get(t, "/v1/policies/"+policy+"/overrides")
	require.NoError(t, json.Unmarshal([]byte(body), &list))
	return len(list.Overrides)
}

// The page asks for a token, keeps it in its tab, and says what it may not do.
func TestConsoleAsksForAToken(t *testing.T) {
	t.Parallel()
	p := startProcess(t, "-console", "-token-file", servertest.WriteFile(t, "tokens", "operate secret # alice\ncheck gateway\n"))
	b := startBrowser(t)
	use := func(token string) {
		t.Helper()
		b.shows(`document.getElementById("token-dialog").open && document.getElementById("token").value === ""`)
		b.do(chromedp.SetValue(chromedp.CSS("#token"), token))
		b.press("#token-dialog button")
	}
	b.looksAt(p.Service, "fixed", "c")
	use("wrong")
	use("gateway")
	b.shows(textIs("verdict", "Admitted"))
	b.shows(textIs("overrides", "This token may only make checks"))
	b.press("#actions button[data-do=reset]")
	b.press("#confirm-do")
	b.shows(textIs("done", "Not allowed: this token may only make checks"))
	b.press("#forget")
	use("secret")
	b.shows(textIs("overrides", "None."))
	b.changes("exempt")
	b.shows(textIs("verdict", "Always admitted"))
	b.shows(textIs("overrides", "alice"))
	assert.Empty(t, value[string](b, "document.cookie"))
}

// A page of another site, be it on the same machine, can't change anything by the browser of
// an operator, nor read anything: not by fetch, which asks as a form would or has to ask
// whether it may, and not by a form.
func TestPagesOfOtherSitesChangeNothing(t *testing.T) {
	t.Parallel()
	p := startProcess(t, "-console")
	for range 5 {
		p.Check(t, "log", "victim", 1)
	}
	status, _, _, err := p.Send(http.MethodPut, "/v1/policies/log/overrides/blocked-one", "application/json", `{"blocked":true,"for":"1h"}`)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, status)
	const page = `<!doctype html><title>working</title><iframe name="answer"></iframe><iframe src="%[1]s/console/"></iframe>
<form method="post" enctype="text/plain" target="answer" action="%[1]s/v1/check"><input name='{"policy":"log","client":"form' value='"}'></form>
<script type="module">
const body = '{"policy":"log","client":"victim"}';
const asked = [
  ["POST", "/v1/check", body], ["POST", "/v1/check/batch", '{"checks":[' + body + "]}"], ["POST", "/v1/charge", '{"policy":"log","client":"victim","cost":9}'],
  ["POST", "/v1/settle", '{"receipt":"w1.x","cost":1}'], ["POST", "/v1/settle/batch", '{"settlements":[]}'], ["POST", "/v1/renew", '{"receipt":"w1.x"}'],
  ["PUT", "/v1/policies/log/overrides/victim", '{"blocked":true,"for":"1h"}'], ["DELETE", "/v1/policies/log/overrides/blocked-one"],
  ["DELETE", "/v1/policies/log/clients/victim"],
  ...["/v1/policies", "/v1/policies/log", "/v1/policies/log/clients/victim", "/v1/policies/log/clients/victim/state", "/v1/policies/log/top", "/v1/policies/log/history",
    "/v1/policies/log/overrides", "/v1/policies/log/overrides/blocked-one", "/v1/audit", "/v1/status", "/v1/look?get=/v1/status", "/v1/auth/none", "/metrics", "/readyz", "/openapi.yaml", "/console/"].map((path) => ["GET", path]),
];
let read = 0;
for (const mode of ["cors", "no-cors"])
  for (const [method, path, body] of asked)
    try {
      const answer = await fetch("%[1]s" + path, { method, mode, body, headers: { "Content-Type": "application/x-www-form-urlencoded" } });
      if (answer.type !== "opaque") read++;
    } catch {}
const answered = new Promise((loaded) => document.querySelector("iframe").addEventListener("load", loaded));
document.querySelector("form").submit();
await answered;
document.title = "read " + read;
</script>`
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, page, p.URL)
	}))
	defer elsewhere.Close()
	b := startBrowser(t, "CORS policy", "Access to fetch", "frame-ancestors 'none'")
	for _, other := range []string{elsewhere.URL, strings.Replace(elsewhere.URL, "127.0.0.1", "localhost", 1)} {
		b.do(chromedp.Navigate(other))
		b.shows(`document.title === "read 0"`)
	}
	assert.EqualValues(t, 94, p.Check(t, "log", "victim", 1).Limits[0].Remaining)
	assert.EqualValues(t, 99, p.Check(t, "log", "form=", 1).Limits[0].Remaining)
	assert.True(t, blocked(t, p, "log", "blocked-one"))
	assert.Equal(t, 1, overrides(t, p, "log"))
	_, metrics := p.Get(t, "/metrics")
	assert.True(t, strings.Contains(metrics, `weir_http_requests_total{code="403",route="/v1/check"} 6`), "by two sites, twice by fetch and by a form")
}

// A page that is open for ten minutes, redrawn each second, holds no more than after one, and
// asks seldom how a client stands of whom nothing is counted.
// The time is the browser's own, which goes on while nothing is to be done.
func TestConsoleHoldsNoMoreInTheEnd(t *testing.T) {
	t.Parallel()
	p := startProcess(t, "-console")
	for range 105 {
		p.Check(t, "sliding-1s", "gold-co", 1)
	}
	b := startBrowser(t)
	b.looksAt(p.Service, "sliding-1s", "gold-co")
	b.shows(textIs("verdict", "by sliding-window"))
	states := func() (n int) {
		_, metrics := p.Get(t, "/metrics")
		_, after, _ := strings.Cut(metrics, `weir_http_requests_total{code="200",route="/v1/policies/{policy}/clients/{client}/state"} `)
		_, err := fmt.Sscan(after, &n)
		require.NoError(t, err)
		return n
	}
	held := func(after time.Duration) (bytes float64, nodes int64) {
		b.passes(after)
		b.do(chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
			for range 2 { // the first may leave what the page's objects held
				if _, err := cdp.Call(ctx, t, heapprofiler.CollectGarbage, cdp.Empty{}); err != nil {
					return err
				}
			}
			heap, err := cdp.Call(ctx, t, runtime.GetHeapUsage, cdp.Empty{})
			if err != nil {
				return err
			}
			dom, err := cdp.Call(ctx, t, memory.GetDOMCounters, cdp.Empty{})
			bytes, nodes = heap.UsedSize, dom.Nodes
			return err
		}))
		return bytes, nodes
	}
	bytes, nodes := held(time.Minute)
	asked := states()
	value[bool](b, `window.drawn = 0, new MutationObserver(() => drawn++).observe(document.getElementById("limits"), { childList: true }), true`)
	bytesThen, nodesThen := held(9 * time.Minute)
	drawn := value[int](b, "drawn")
	t.Logf("%d states drawn, and %d asked for; %.0f bytes and %d nodes held, then %.0f and %d", drawn, states()-asked, bytes, nodes, bytesThen, nodesThen)
	assert.GreaterOrEqual(t, drawn, 500)
	assert.Less(t, states()-asked, 240)
	assert.Less(t, bytesThen, bytes*1.1)
	assert.Less(t, float64(nodesThen), float64(nodes)*1.2)
}

// passes has a time pass in the browser, which then stands still.
func (b *browser) passes(d time.Duration) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, 3*servertest.Patience)
	defer cancel()
	budget := float64(d.Milliseconds())
	_, err := chromedp.Run(ctx, chromedp.WaitEvent(emulation.VirtualTimeBudgetExpired, nil, chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, emulation.SetVirtualTimePolicy, emulation.SetVirtualTimePolicyParams{
			Policy: emulation.VirtualTimePolicyPauseIfNetworkFetchesPending, Budget: &budget,
		})
		return err
	})))
	require.NoError(b.t, err)
}

var openPages = flag.Int("pages", 0, "number of open pages for operators of which the cost is told")

// What open pages cost the instance that they ask, in CPU, beside what it takes without them.
// What one asks in a minute is written down, and then asked for so many at once: browsers take
// far more than weir. It is for quiet times, as a busy machine takes more for the same.
func TestCostOfOpenPages(t *testing.T) {
	if *openPages == 0 {
		t.Skip("only with -pages, such as -pages 20")
	}
	t.Run("denied before", func(t *testing.T) { costOfOpenPages(t, 105, 0) })
	t.Run("asking", func(t *testing.T) { costOfOpenPages(t, 0, 2) })
}

// costOfOpenPages is that of pages of clients that each have asked so often, and go on to ask
// so often a second.
func costOfOpenPages(t *testing.T, before, rate int) {
	m := memcachedtest.Start(t)
	p := startProcess(t, "-memcached", m.Addr, "-console")
	type request struct {
		after  time.Duration
		path   string
		header http.Header
	}
	var asked []request
	var mu sync.Mutex
	began := time.Now()
	address, err := url.Parse(p.URL)
	require.NoError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(address)
	between := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked = append(asked, request{time.Since(began), r.URL.RequestURI(), r.Header.Clone()})
		mu.Unlock()
		proxy.ServeHTTP(w, r)
	}))
	defer between.Close()
	for i := range *openPages {
		for range before {
			p.Check(t, "sliding-1s", fmt.Sprintf("client-%d-", i), 1)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	var hammering sync.WaitGroup
	defer hammering.Wait()
	defer stop()
	for i := range *openPages * rate {
		hammering.Go(func() {
			<-time.After(time.Duration(i) * time.Second / time.Duration(*openPages*rate))
			for tick := time.Tick(time.Second); ctx.Err() == nil; {
				p.Check(t, "sliding-1s", fmt.Sprintf("client-%d-", i%*openPages), 1)
				select {
				case <-tick:
				case <-ctx.Done():
				}
			}
		})
	}
	const lasts = time.Minute
	b := startBrowser(t)
	b.looksAt(servertest.Service{URL: between.URL}, "sliding-1s", "client-0-")
	b.shows(textIs("verdict", "by sliding-window"))
	<-time.After(lasts - time.Since(began))
	b.do(chromedp.Navigate("about:blank"))
	used := func() time.Duration {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
		require.NoError(t, err)
		_, after, _ := strings.Cut(string(stat), ") ")
		ticks := 0
		for _, field := range strings.Fields(after)[11:13] { // of user and system, each a hundredth of a second
			n, err := strconv.Atoi(field)
			require.NoError(t, err)
			ticks += n
		}
		return time.Duration(ticks) * 10 * time.Millisecond
	}
	mu.Lock()
	all := slices.Clone(asked)
	mu.Unlock()
	share := func(pages int) float64 {
		before := used()
		var open sync.WaitGroup
		for i := range pages {
			open.Go(func() {
				client := &http.Client{Transport: new(http.Transport)}
				defer client.CloseIdleConnections()
				opened := time.Now().Add(time.Duration(i) * time.Second / time.Duration(pages))
				for _, a := range all {
					<-time.After(time.Until(opened.Add(a.after)))
					r, err := http.NewRequest(http.MethodGet, p.URL+strings.ReplaceAll(a.path, "client-0-", fmt.Sprintf("client-%d-", i)), nil)
					if assert.NoError(t, err) {
						r.Header = a.header
						answer, err := client.Do(r)
						if assert.NoError(t, err) {
							_, _ = io.Copy(io.Discard, answer.Body)
							_ = answer.Body.Close()
						}
					}
				}
			})
		}
		<-time.After(lasts)
		open.Wait()
		return 100 * (used() - before).Seconds() / lasts.Seconds()
	}
	without, with := share(0), share(*openPages)
	t.Logf("%d pages, each of %d requests a minute, take %.2f%% of a core: %.2f%% with them and %.2f%% without", *openPages, len(all), with-without, with, without)
}
