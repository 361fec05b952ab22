// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

const root = "../.."

// page is a Markdown file: its prose without code, its anchors, and its fenced blocks.
type page struct {
	path    string // from the repository's root
	prose   string
	anchors []string
	blocks  []block
}

type block struct {
	line       int // of the opening fence
	lang, info string
	text       string
}

// pages reads every Markdown file of the repository, but for build outputs.
func pages(t *testing.T) []page {
	t.Helper()
	var all []page
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() && (name == "bin" || name == "node_modules" || (strings.HasPrefix(name, ".") && path != root)) {
			return filepath.SkipDir
		}
		if d.IsDir() || filepath.Ext(name) != ".md" {
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		all = append(all, parse(filepath.ToSlash(rel), string(b)))
		return err
	})
	if err != nil || len(all) < 10 {
		t.Fatalf("%d pages, %v", len(all), err)
	}
	return all
}

var (
	fence   = regexp.MustCompile("^( *)(```+|~~~+) *([^` ]*) *([^`]*)$")
	heading = regexp.MustCompile(`^#{1,6} +(.+?) *#*$`)
	code    = regexp.MustCompile("``[^`].*?``|`[^`]*`")
	link    = regexp.MustCompile(`\]\(<?([^)\s>]+)>?(?: +"[^"]*")?\)`)
	markup  = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
)

func parse(path, text string) page {
	p := page{path: path}
	var prose strings.Builder
	closing := ""
	for i, line := range strings.Split(text, "\n") {
		m := fence.FindStringSubmatch(line)
		switch {
		case closing != "" && strings.TrimSpace(line) == closing:
			closing = ""
		case closing != "":
			b := &p.blocks[len(p.blocks)-1]
			b.text += line + "\n"
		case m != nil:
			closing = m[2]
			p.blocks = append(p.blocks, block{line: i + 1, lang: m[3], info: strings.TrimSpace(m[4])})
		default:
			if h := heading.FindStringSubmatch(line); h != nil {
				p.anchors = append(p.anchors, p.anchor(h[1]))
			}
			prose.WriteString(code.ReplaceAllString(line, "`") + "\n")
		}
	}
	p.prose = prose.String()
	return p
}

// anchor is the fragment that GitHub gives a heading: letters and digits in
// lower case, hyphens for blanks, and a number where the page has it already.
func (p *page) anchor(title string) string {
	title = markup.ReplaceAllString(title, "$1")
	slug := strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, title)
	base := slug
	for n := 1; slices.Contains(p.anchors, slug); n++ {
		slug = base + "-" + string(rune('0'+n))
	}
	return slug
}

// Every relative link names a file that exists, and a heading that it has.
func TestLinks(t *testing.T) {
	anchors := map[string][]string{}
	all := pages(t)
	for i := range all {
		anchors[all[i].path] = all[i].anchors
	}
	for i := range all {
		p := &all[i]
		for _, m := range link.FindAllStringSubmatch(p.prose, -1) {
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			if problem := broken(p.path, m[1], anchors); problem != "" {
				t.Errorf("%s: link %s: %s", p.path, m[1], problem)
			}
		}
	}
}

// broken says what is wrong with a relative link, or nothing.
func broken(from, target string, anchors map[string][]string) string {
	file, fragment, _ := strings.Cut(target, "#")
	path := from
	if file != "" {
		path = filepath.ToSlash(filepath.Join(filepath.Dir(from), file))
	}
	if _, err := os.Stat(filepath.Join(root, path)); err != nil {
		return "no such file"
	}
	if fragment == "" || slices.Contains(anchors[path], fragment) {
		return ""
	}
	return "no such heading"
}

func TestBrokenLinks(t *testing.T) {
	p := parse("docs/x.md", "# One `two` & [three](y.md)\n## Same\n## Same\n`[no](link)`\n```sh test\n# no heading\n[no](link)\n```\n[a](x.md#same-1)\n")
	if want := []string{"one-two--three", "same", "same-1"}; !slices.Equal(p.anchors, want) {
		t.Errorf("anchors %q, want %q", p.anchors, want)
	}
	if got := link.FindAllString(p.prose, -1); len(got) != 2 {
		t.Errorf("links %q, want those outside of code", got)
	}
	if len(p.blocks) != 1 || p.blocks[0].lang != "sh" || p.blocks[0].info != "test" || p.blocks[0].line != 5 {
		t.Errorf("blocks %+v", p.blocks)
	}
	anchors := map[string][]string{"README.md": {"try-it"}}
	for target, want := range map[string]string{
		"../README.md": "", "../README.md#try-it": "", "../README.md#no": "no such heading", "no.md": "no such file", "../docs": "",
	} {
		if got := broken("docs/x.md", target, anchors); got != want {
			t.Errorf("%s: %q, want %q", target, got, want)
		}
	}
}
