package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/api"
	"weir/cmd/server/servertest"
)

func TestReadTokens(t *testing.T) {
	t.Parallel()
	tokens, err := readTokens(servertest.WriteFile(t, "tokens", "\ufeffzeroth\n# of the team\n\n  first \r\noperate second\ncheck th#rd # a gateway #1\nfourth #\nfifth\t#\ttabs\nfirst\n\t#last\n"))
	require.NoError(t, err)
	assert.Equal(t, []api.Token{
		{Secret: "zeroth"}, {Secret: "first"}, {Secret: "second"}, {Secret: "th#rd", Name: "a gateway #1", ChecksOnly: true}, {Secret: "fourth"},
		{Secret: "fifth", Name: "tabs"}, {Secret: "first"},
	}, tokens)

	for _, wrong := range []string{"se cond", "look secret", "check a b", "check # gateway", "operate"} {
		file := servertest.WriteFile(t, "tokens", "first\n"+wrong+"\n")
		_, err = readTokens(file)
		assert.EqualError(t, err, "-token-file "+file+`:2: a line must be a token, "operate" and a token, or "check" and a token, and then # and whose it is`)
	}

	for _, other := range []string{"check twice # alice", "twice # bob", "twice"} {
		file := servertest.WriteFile(t, "tokens", "first\noperate twice # alice\n\n"+other+"\n")
		_, err = readTokens(file)
		assert.EqualError(t, err, "-token-file "+file+":4: the token of line 2 again, with other rights or another name; leave one of the lines out", other)
	}

	file := servertest.WriteFile(t, "tokens", "# none\n\n")
	_, err = readTokens(file)
	assert.EqualError(t, err, "-token-file "+file+" has no token; it needs one a line")

	_, err = readTokens("/nowhere/tokens")
	assert.EqualError(t, err, "-token-file: open /nowhere/tokens: no such file or directory")
}

func TestReadUser(t *testing.T) {
	t.Parallel()
	user, password, err := readUser(servertest.WriteFile(t, "user", "weir:se:cret\nother:one\n"))
	require.NoError(t, err)
	assert.Equal(t, "weir", user)
	assert.Equal(t, "se:cret", password, "a password may hold a colon")

	for _, content := range []string{"", "weir\n", ":secret\n", "weir:\n", "\nweir:secret\n"} {
		file := servertest.WriteFile(t, "user", content)
		_, _, err = readUser(file)
		assert.EqualError(t, err, "-memcached-user-file "+file+" must begin with a line user:password")
	}

	_, _, err = readUser("/nowhere/user")
	assert.EqualError(t, err, "-memcached-user-file: open /nowhere/user: no such file or directory")
}
