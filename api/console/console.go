// Package console is the page for operators: who is denied, why, and what helps. It is
// static, and needs nothing but weir's own API, which it asks with the token that an
// operator gives it. It knows nothing of the rest of weir.
//
// console.js asks and changes, limits.js draws how limits stand, elements.js makes text
// and elements.
package console

import (
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"net/http"
	"strings"
)

//go:embed index.html console.js limits.js elements.js console.css
var files embed.FS

// Path is where the page is.
const Path = "/console/"

// policy lets the page load nothing but itself, ask nobody but its own weir, and be put
// into no other page. Trusted types without a policy: text never becomes markup.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; " +
	"form-action 'none'; frame-ancestors 'none'; trusted-types 'none'; require-trusted-types-for 'script'"

var types = map[string]string{"html": "text/html; charset=utf-8", "js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8"}

// Handler returns a handler that serves the page at Path and below it, and leads there from Path
// without its last slash.
func Handler() http.Handler {
	type file struct {
		content []byte
		etag    string
	}
	byName := make(map[string]file)
	entries, _ := files.ReadDir(".") // what is embedded can be read
	for _, e := range entries {
		content, _ := files.ReadFile(e.Name())
		sum := sha256.Sum256(content)
		byName[e.Name()] = file{content, `"` + base64.RawURLEncoding.EncodeToString(sum[:12]) + `"`}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path+"/" == Path {
			http.Redirect(w, r, Path, http.StatusPermanentRedirect)
			return
		}
		name := strings.TrimPrefix(r.URL.Path, Path)
		if name == "" {
			name = "index.html"
		}
		f, ok := byName[name]
		if !ok {
			http.NotFound(w, r)
			return
		}
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-cache")
		h.Set("ETag", f.etag)
		if r.Header.Get("If-None-Match") == f.etag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		_, extension, _ := strings.Cut(name, ".")
		h.Set("Content-Type", types[extension])
		_, _ = w.Write(f.content)
	})
}
