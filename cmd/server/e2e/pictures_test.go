package e2e

import (
	"bytes"
	"flag"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"weir/cmd/server/servertest"
	"weir/counters/memcachedtest"
)

var picturesFolder = flag.String("pictures", "", "folder that gets pictures of the page for operators")

// Pictures of the page's parts, for the documents: three instances under a minute's traffic,
// of which one client asks too much.
func TestConsolePictures(t *testing.T) {
	if *picturesFolder == "" {
		t.Skip("only with -pictures: make console-pictures")
	}
	m := memcachedtest.Start(t)
	file := servertest.WriteFile(t, "policies.yaml", `policies:
  api:
    limits:
      - {name: per-minute, algorithm: sliding_window, limit: 240, window: 1m, sub_windows: 20}
      - {name: burst, algorithm: token_bucket, limit: 20, window: 1s, burst: 60}
  login: {limits: [{algorithm: sliding_log, limit: 5, window: 1m}]}
  export: {limits: [{algorithm: fixed_window, limit: 20, window: 1m}]}
`)
	instances := startProcesses(t, []string{m.Addr, m.Addr, m.Addr}, "-console", "-config", file)
	override := func(path, body string) {
		status, _, answer, err := instances[0].Send(http.MethodPut, "/v1/policies/"+path, "application/json", body)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, status, "%s", answer)
	}
	override("api/overrides/10.0.0.0%2F8", `{"blocked":true,"for":"10m","reason":"scraper, INC-77"}`)
	override("api/overrides/silver-co", `{"limits":{"per-minute":600},"for":"2h","reason":"promised by sales"}`)
	override("api/overrides/probe", `{"exempt":true,"for":"24h","reason":"monitoring"}`)
	var traffic sync.WaitGroup
	stop := make(chan struct{})
	defer traffic.Wait()
	defer close(stop)
	minute := make(chan struct{}) // closed when one has passed
	traffic.Go(func() {
		ticks := time.Tick(time.Second)
		for second := 0; ; second++ {
			for i, p := range instances {
				wave := 1 + math.Sin(float64(second)/6)
				for client, rate := range map[string]float64{"gold-co": 5 + wave, "silver-co": 1 + wave, "probe": 1, "10.1.2.3": 1, "bronze-co": wave} {
					for range int(rate) {
						p.Check(t, "api", client, 1)
					}
				}
				if second%7 == i {
					p.Check(t, "login", "user:alice", 1)
					p.Check(t, "export", fmt.Sprint("team-", second%4), 1)
				}
			}
			if second == 60 {
				close(minute)
			}
			select {
			case <-stop:
				return
			case <-ticks:
			}
		}
	})
	<-minute
	b := startBrowser(t)
	b.do(chromedp.EmulateViewport(760, 900))
	b.looksAt(instances[0].Service, "api", "gold-co")
	b.shows(textIs("verdict", "Denied by per-minute"))
	b.shows(textIs("fleet", "3 instances"))
	b.shows(textIs("overrides", "INC-77"))
	b.shows(`document.querySelectorAll("#top-denied a").length > 1 && document.querySelectorAll("#policies polyline").length > 0`)
	for name, sections := range map[string]string{"find": "1", "now": "2", "policies": "3", "overrides": "4", "store": "5"} {
		picture, err := chromedp.Run(b.ctx, chromedp.Screenshot(chromedp.CSS("main > section:nth-of-type("+sections+")")))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(*picturesFolder, name+".png"), withFewColours(t, picture), 0o644))
	}
}

// withFewColours returns a PNG with the 256 colours that are most frequent in it, for a third of
// its size.
func withFewColours(t *testing.T, picture []byte) []byte {
	from, err := png.Decode(bytes.NewReader(picture))
	require.NoError(t, err)
	counts := make(map[color.Color]int)
	for y := from.Bounds().Min.Y; y < from.Bounds().Max.Y; y++ {
		for x := from.Bounds().Min.X; x < from.Bounds().Max.X; x++ {
			counts[from.At(x, y)]++
		}
	}
	var colours color.Palette
	for c := range counts {
		colours = append(colours, c)
	}
	slices.SortFunc(colours, func(a, b color.Color) int { return counts[b] - counts[a] })
	to := image.NewPaletted(from.Bounds(), colours[:min(len(colours), 256)])
	draw.Draw(to, to.Bounds(), from, from.Bounds().Min, draw.Src)
	var out bytes.Buffer
	require.NoError(t, (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, to))
	return out.Bytes()
}
