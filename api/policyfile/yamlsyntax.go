package policyfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// document returns the document of a file. Messages say that an empty file needs the key, and
// that two documents are against the rule.
func document(file string, data []byte, key, rule string) (*yaml.Node, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var first, second yaml.Node
	err := decoder.Decode(&first)
	if errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: the file is empty; it needs the key %s", file, key)
	}
	if err == nil {
		err = decoder.Decode(&second)
	}
	if err == nil {
		return nil, fmt.Errorf("%s:%d: a second document begins here; %s", file, second.Line, rule)
	}
	if !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s:%s", file, explainSyntax(data, err))
	}
	return first.Content[0], nil
}

// explainSyntax returns what is wrong in data, which the YAML parser refused
// with err: the line if it is known, and after ": " the mistake. The parser says
// what it expected, and often names the first line of the block; explainSyntax
// looks for the usual causes.
func explainSyntax(data []byte, err error) string {
	message := strings.TrimPrefix(strings.TrimPrefix(err.Error(), "yaml:"), " line ")
	says := func(texts ...string) bool {
		return slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(message, text) })
	}
	lines := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
	if at, rest, ok := strings.Cut(message, ": "); ok && parserMessage.MatchString(rest) {
		if line, err := strconv.Atoi(at); err == nil { // the parser counts from 0, the scanner doesn't
			message = fmt.Sprintf("%d: %s", min(line+1, len(lines)), rest)
		}
	} else if strings.HasPrefix(message, " did not find expected") || parserMessage.MatchString(strings.TrimSpace(message)) { // neither names the first line
		message = "1:" + message
	}
	if found := addLine(lines, message); found != "" {
		return found
	}
	if at, beginning := missingSpace(lines, message); at > 0 && says("could not find expected ':'", "mapping values are not allowed", "did not find expected key", "did not find expected '-'") {
		return fmt.Sprintf("%d: a space is missing behind %s", at, beginning)
	}
	for i, line := range lines {
		switch {
		case tabbed.MatchString(line) && says("found a tab", "cannot start any token"):
			return fmt.Sprintf("%d: the line is indented with a tab; YAML takes only spaces there", i+1)
		case says("expected ',' or", "expected node content") && variable.MatchString(line):
			return fmt.Sprintf("%d: %s; write the value in the place of %s", i+1, notExpanded, variable.FindString(line))
		}
	}
	if line, bracket := unopenedBracket(lines); line > 0 && says("did not find expected key", "did not find expected '-'") {
		return fmt.Sprintf("%d: a %s closes what isn't open", line, bracket)
	}
	if says("did not find expected key", "expected <document start>", "did not find expected '-'", "are not allowed in this context", "could not find expected ':'") {
		line, spaces, right := misindented(lines)
		if key, above := keyWithoutColon(lines, line); above > 0 {
			return fmt.Sprintf("%d: a colon is missing behind %q: the lines below it are indented", above, key)
		}
		if line > 0 {
			return fmt.Sprintf("%d: wrong indentation: the line begins with %s, and %s would be right", line, plural(spaces, "space"), right)
		}
	}
	if says("expected alphabetic or numeric character") {
		return message + quoteStar
	}
	if says("mapping values are not allowed") {
		return message + `; a value with ": " in it has to be in quotes`
	}
	if says("found unexpected end of stream") {
		return message + "; a quote that opens in front of this isn't closed"
	}
	if says("found character that cannot start any token") {
		return message + "; a value that begins with @, ` or % has to be in quotes"
	}
	if says("did not find expected ',' or") {
		return message + "; a bracket that opens here isn't closed, or a comma is missing"
	}
	if says("did not find expected node content") {
		return message + "; a bracket that opens in front of this isn't closed, or a comma is one too many"
	}
	if says("found incompatible YAML document") {
		return message + "; leave this line out"
	}
	return message
}

const quoteStar = "; a key or value that begins with * or & has to be in quotes"

// addLine adds the line to a message that YAML gives without one; it returns "" for any other
// message.
func addLine(lines []string, message string) string {
	var wrong func(line string) bool
	advice := ""
	alias := unknownAlias.FindStringSubmatch(message)
	switch {
	case alias != nil:
		use := regexp.MustCompile(`(^|[\s,:[{])\*` + regexp.QuoteMeta(alias[1]) + `($|[\s,:\]}])`)
		wrong = func(line string) bool { return use.MatchString(comment.ReplaceAllString(line, "")) }
		advice = quoteStar
	case strings.Contains(message, " UTF-8 octet"):
		wrong = func(line string) bool { return !utf8.ValidString(line) }
		advice = "; the file has to be in UTF-8"
	case strings.HasSuffix(message, "control characters are not allowed"):
		wrong = controls.MatchString
		advice = "; take out what can't be seen there"
	default:
		return ""
	}
	if i := slices.IndexFunc(lines, wrong); i >= 0 {
		return fmt.Sprintf("%d:%s%s", i+1, message, advice)
	}
	return message + advice
}

var (
	unknownAlias = regexp.MustCompile(`^ unknown anchor '(.*)' referenced$`)
	controls     = regexp.MustCompile(`[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x{84}\x{86}-\x{9f}]`)
)

// missingSpace returns the number of the first line in which a colon or a dash has no space behind
// it, and which key or dash that is; else 0. It looks for colons in the line that message names and
// in the one before it, for dashes in all lines below, too.
func missingSpace(lines []string, message string) (at int, beginning string) {
	named, _, _ := strings.Cut(message, ":")
	last, err := strconv.Atoi(named)
	if err != nil {
		return 0, ""
	}
	for at = max(1, last-1); at <= len(lines); at++ {
		if parts := keyUnspaced.FindStringSubmatch(lines[at-1]); parts != nil && parts[1] != "header:" && at <= last {
			return at, strconv.Quote(parts[1])
		}
		if dashUnspaced.MatchString(lines[at-1]) {
			return at, "the -"
		}
	}
	return 0, ""
}

var (
	keyUnspaced  = regexp.MustCompile(`^ *(?:- +)?(\w+:)[\w/"'\[{][^:]*$`)
	dashUnspaced = regexp.MustCompile(`^ *-[\w{]`)
)

// unopenedBracket returns the number of the first line with a closing bracket that has no opening
// one, and that bracket; else 0. Brackets within texts don't count.
func unopenedBracket(lines []string) (line int, bracket string) {
	open := 0
	for i, text := range lines {
		text = comment.ReplaceAllString(quoted.ReplaceAllString(text, ""), "")
	scan:
		for at, c := range text {
			switch c {
			case '[', '{':
				if open > 0 || valueBegins.MatchString(text[:at]) {
					open++
				}
			case ']', '}':
				switch {
				case open > 0:
					open--
				case valueBegins.MatchString(text[:at]) || flowEnds.MatchString(text[:at]):
					return i + 1, string(c)
				default:
					break scan
				}
			}
		}
	}
	return 0, ""
}

var (
	quoted      = regexp.MustCompile(`"[^"]*"|'[^']*'`)
	valueBegins = regexp.MustCompile(`(^[ -]*|: +)([&!]\S+ +)*$`)
	flowEnds    = regexp.MustCompile(`[\]}][ ,]*$`)
)

// parserMessage matches messages of YAML's parser, as opposed to those of its scanner.
var parserMessage = regexp.MustCompile(`^did not find expected (<|node|key|'-'|',')|^found (incompatible|undefined tag|duplicate %)`)

// tabbed matches a line whose indentation has a tab.
var tabbed = regexp.MustCompile(`^[ -]*\t`)

// misindented returns the first line, from 1, that begins where no line may: to
// the right of one that has its value already, or between the columns of those
// that it could go on. It returns the number of spaces that it begins with, and
// the numbers that would be right. The line is 0 if there is none.
func misindented(lines []string) (line, spaces int, right string) {
	var columns []int // of the blocks that are open, the innermost last
	open := true      // the line before may have a block below it
	scalar := -1      // the column of the key of a text in the lines below, if any
	brackets := 0     // that are open
	for i, text := range lines {
		text = comment.ReplaceAllString(text, "")
		content := strings.TrimLeft(text, " ")
		column := len(text) - len(content)
		if content == "" || scalar >= 0 && column > scalar {
			continue
		}
		scalar = -1
		inside := brackets > 0
		brackets = max(0, brackets+strings.Count(content, "{")+strings.Count(content, "[")-strings.Count(content, "}")-strings.Count(content, "]"))
		if inside {
			continue
		}
		innermost := len(columns) - 1
		fits := slices.Contains(columns, column)
		if !fits && !(open && (innermost < 0 || column > columns[innermost])) {
			slices.Reverse(columns)
			return i + 1, column, orList(columns)
		}
		for len(columns) > 0 && columns[len(columns)-1] >= column {
			columns = columns[:len(columns)-1]
		}
		columns = append(columns, column)
		for item := listItem.FindString(content); item != ""; item = listItem.FindString(content) {
			content = content[len(item):]
			column += len(item)
			columns = append(columns, column)
		}
		open = opens.MatchString(content)
		if textBelow.MatchString(content) {
			scalar = column
		}
	}
	return 0, 0, ""
}

// keyWithoutColon returns the word that stands alone on the line above a line, and the number of
// the line above, if the word may be a key without its colon: the line is indented further. Else it
// returns 0.
func keyWithoutColon(lines []string, line int) (key string, above int) {
	for above = line - 1; above > 0; above-- {
		text := comment.ReplaceAllString(lines[above-1], "")
		if strings.TrimSpace(text) == "" {
			continue
		}
		parts := bareWord.FindStringSubmatch(text)
		if parts == nil || len(lines[line-1])-len(strings.TrimLeft(lines[line-1], " ")) <= len(parts[1]) {
			break
		}
		return parts[2], above
	}
	return "", 0
}

var (
	bareWord  = regexp.MustCompile(`^([ -]*)([\w.-]+)$`)
	comment   = regexp.MustCompile(`(^|\s)#.*|\s+$`)
	listItem  = regexp.MustCompile(`^- +`)
	opens     = regexp.MustCompile(`^-?$|:( +[&!]\S+)*$`)
	textBelow = regexp.MustCompile(`[|>][-+0-9]*$`)
)

// orList writes numbers as "4, 2 or 0".
func orList(numbers []int) string {
	var words []string
	for _, n := range numbers {
		words = append(words, strconv.Itoa(n))
	}
	last := len(words) - 1
	if last < 1 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:last], ", ") + " or " + words[last]
}
