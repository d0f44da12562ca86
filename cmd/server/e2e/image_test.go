package e2e

import (
	"debug/buildinfo"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// inDockerfile returns what a pattern's groups match in the Dockerfile.
func inDockerfile(t *testing.T, pattern string) []string {
	t.Helper()
	data, err := os.ReadFile("../../../Dockerfile")
	require.NoError(t, err)
	found := regexp.MustCompile("(?m)"+pattern).FindAllStringSubmatch(string(data), -1)
	require.Len(t, found, 1, pattern)
	return found[0][1:]
}

func TestImageSaysTheVersionOfItsBuild(t *testing.T) {
	t.Parallel()
	flags := inDockerfile(t, `-ldflags="([^"]*)"`)[0]
	require.Contains(t, flags, "$VERSION")
	require.Contains(t, read(t, "../../../deploy/release"), ` -ldflags="`+strings.ReplaceAll(flags, "$VERSION", "$version")+`" `)
	file := filepath.Join(t.TempDir(), "weir")
	require.NoError(t, goTool("build", "-o", file, "-ldflags="+strings.ReplaceAll(flags, "$VERSION", "1.2.3"), ".."))
	out, err := exec.Command(file, "-version").Output()
	require.NoError(t, err)
	assert.Equal(t, "weir 1.2.3\n", string(out))
}

// Whoever gets the image gets the licences of all that is in it.
func TestImageCarriesTheLicences(t *testing.T) {
	t.Parallel()
	file := inDockerfile(t, `^RUN deploy/notices >(\S+)$`)[0]
	assert.Equal(t, []string{file}, inDockerfile(t, `^COPY --from=build /src/LICENSE (\S+) /$`))
	notices := exec.Command("deploy/notices")
	notices.Dir = "../../.."
	out, err := notices.Output()
	require.NoError(t, err)
	texts := make(map[string]string)
	for _, section := range strings.Split("\n"+string(out), "\n=== ")[1:] {
		name, text, _ := strings.Cut(section, "\n")
		texts[name] = text
	}
	build, err := buildinfo.ReadFile(binary(t))
	require.NoError(t, err)
	names := []string{"Go " + build.GoVersion}
	for _, module := range build.Deps {
		names = append(names, module.Path+" "+module.Version)
	}
	for _, name := range names {
		assert.Regexp(t, `Apache License|Permission is hereby granted|Redistribution and use`, texts[name], name)
	}
}

// The image has no shell, and Kubernetes can't tell that a user's name isn't
// root's.
func TestImageNeedsNothingBesideWeir(t *testing.T) {
	t.Parallel()
	assert.Equal(t, "65534:65534", inDockerfile(t, `^USER (.*)$`)[0])
	weir := inDockerfile(t, `^ENTRYPOINT \["(\S+)"\]$`)[0]
	assert.Equal(t, []string{weir, "-healthcheck"}, inDockerfile(t, `^HEALTHCHECK .* CMD \["(\S+)", "(\S+)"\]$`))
	assert.Equal(t, []string{weir}, inDockerfile(t, `^COPY --from=build /weir (\S+)$`))
	assert.Equal(t, []string{weir}, inDockerfile(t, `CGO_ENABLED=0 go build .* -o (\S+) \./cmd/server$`))
	assert.Equal(t, []string{weir, "ratelimit"}, inDockerfile(t, `ln -s (\S+) /links/bin/(\S+)$`), "what gateways of Envoy start is weir")
	assert.Equal(t, "scratch", inDockerfile(t, `^FROM ([^\s:]+)$`)[0])

	module, err := os.ReadFile("../../../go.mod")
	require.NoError(t, err)
	language := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindSubmatch(module)[1]
	assert.Regexp(t, `^`+regexp.QuoteMeta(string(language))+`\.\d+$`, inDockerfile(t, `^FROM golang:(\S+) AS build$`)[0])
}
