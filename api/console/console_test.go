package console

import (
	"bytes"
	"compress/gzip"
	"math"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func get(path string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, path, nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	Handler().ServeHTTP(w, r)
	return w
}

func TestThePageIsServed(t *testing.T) {
	t.Parallel()
	for path, contentType := range map[string]string{
		"/console/": "text/html; charset=utf-8", "/console/index.html": "text/html; charset=utf-8",
		"/console/console.js": "text/javascript; charset=utf-8", "/console/elements.js": "text/javascript; charset=utf-8",
		"/console/limits.js": "text/javascript; charset=utf-8", "/console/console.css": "text/css; charset=utf-8",
	} {
		w := get(path)
		require.Equal(t, http.StatusOK, w.Code, path)
		assert.Equal(t, contentType, w.Header().Get("Content-Type"))
		assert.Contains(t, w.Header().Get("Content-Security-Policy"), "default-src 'none'")
		assert.Contains(t, w.Header().Get("Content-Security-Policy"), "require-trusted-types-for 'script'")
		assert.Equal(t, "no-cache", w.Header().Get("Cache-Control"))
		again := get(path, "If-None-Match", w.Header().Get("ETag"))
		assert.Equal(t, http.StatusNotModified, again.Code)
		assert.Empty(t, again.Body.String())
	}
	assert.Equal(t, "/console/", get("/console").Header().Get("Location"))
	for _, path := range []string{"/console/console.go", "/console/../console.js", "/console/x"} {
		assert.Equal(t, http.StatusNotFound, get(path).Code, path)
	}
}

// The page is small, is whole by itself, and never makes markup of text.
func TestThePageIsSmallAndPlain(t *testing.T) {
	t.Parallel()
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	for _, path := range []string{"/console/", "/console/console.js", "/console/elements.js", "/console/limits.js", "/console/console.css"} {
		body := get(path).Body.Bytes()
		_, err := w.Write(body)
		require.NoError(t, err)
		assert.NotRegexp(t, regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|style=`), string(body), path)
		for _, address := range regexp.MustCompile(`(?:https?:)?//[a-z][^\s"']*`).FindAllString(string(body), -1) {
			assert.Equal(t, "http://www.w3.org/2000/svg", address, "which is only a name")
		}
	}
	require.NoError(t, w.Close())
	assert.Less(t, packed.Len(), 100_000)
}

// Every text has a contrast of 4.5 at least with what is behind it, in light and in dark.
func TestContrast(t *testing.T) {
	t.Parallel()
	css := get("/console/console.css").Body.String()
	schemes := regexp.MustCompile(`(?s):root \{(.*?)\}`).FindAllStringSubmatch(css, -1)
	require.Len(t, schemes, 2)
	for _, scheme := range schemes {
		colours := make(map[string]float64)
		for _, c := range regexp.MustCompile(`--(\w+): #(\w\w)(\w\w)(\w\w)`).FindAllStringSubmatch(scheme[1], -1) {
			colours[c[1]] = 0.2126*linear(t, c[2]) + 0.7152*linear(t, c[3]) + 0.0722*linear(t, c[4])
		}
		for _, text := range []string{"ink", "soft", "good", "bad", "warn", "accent"} {
			for _, behind := range []string{"paper", "panel"} {
				light, dark := max(colours[text], colours[behind]), min(colours[text], colours[behind])
				assert.GreaterOrEqual(t, (light+0.05)/(dark+0.05), 4.5, "%s on %s", text, behind)
			}
		}
	}
}

// linear returns a part of a colour as WCAG 2 has it, without gamma.
func linear(t *testing.T, hex string) float64 {
	n, err := strconv.ParseUint(hex, 16, 8)
	require.NoError(t, err)
	if c := float64(n) / 255; c > 0.04045 {
		return math.Pow((c+0.055)/1.055, 2.4)
	}
	return float64(n) / 255 / 12.92
}
