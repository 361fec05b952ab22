// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"unicode"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	east "github.com/yuin/goldmark/extension/ast"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/renderer/html"
	"github.com/yuin/goldmark/text"
)

// site is the documentation.
type site struct {
	Version  string
	Sections []*section

	pages  []*page
	byPath map[string]*page
	assets map[string][]byte // images, by path
	source fs.FS
}

// section is a group of pages in the navigation: a heading of the index.
type section struct {
	Title string
	Links []link
}

type link struct {
	Page  *page
	About string // what the index says of it
}

func (s *section) has(p *page) bool {
	return slices.ContainsFunc(s.Links, func(l link) bool { return l.Page == p })
}

// page is one Markdown file.
type page struct {
	path     string // from the repository's root
	source   []byte
	title    string
	headings []heading // of the second level
	ids      map[string]bool
	body     []byte // HTML
	entries  []entry
	doc      ast.Node
}

type heading struct{ ID, Text string }

// Title is the first heading.
func (p *page) Title() string { return p.title }

// target is the path of the HTML page.
func (p *page) target() string {
	if p.path == "README.md" {
		return "index.html"
	}
	return strings.TrimSuffix(p.path, ".md") + ".html"
}

var markdown = goldmark.New(
	goldmark.WithExtensions(extension.GFM),
	goldmark.WithParserOptions(parser.WithAutoHeadingID()),
	goldmark.WithRendererOptions(html.WithUnsafe()), // our own files have <br> and <details>
)

// read reads the pages of a repository. A link to a page or a heading that is not there is an error.
func read(source fs.FS) (*site, error) {
	s := &site{byPath: map[string]*page{}, assets: map[string][]byte{}, source: source}
	names := []string{"README.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md", "deploy/chart/README.md", "examples/README.md"}
	err := fs.WalkDir(source, "docs", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && path.Ext(name) == ".md" {
			names = append(names, name)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		b, err := fs.ReadFile(source, name)
		if err != nil {
			return nil, err
		}
		p := parse(name, b)
		s.pages = append(s.pages, p)
		s.byPath[name] = p
	}
	var errs []error
	for _, p := range s.pages {
		errs = append(errs, s.resolve(p))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	for _, p := range s.pages {
		var b bytes.Buffer
		if err := markdown.Renderer().Render(&b, p.source, p.doc); err != nil {
			return nil, fmt.Errorf("%s: %w", p.path, err)
		}
		p.body = b.Bytes()
	}
	return s, s.readIndex()
}

// parse reads a page. Its links are those of the repository until resolve.
func parse(name string, b []byte) *page {
	ids := &ids{have: map[string]bool{}}
	p := &page{path: name, source: b, ids: ids.have}
	p.doc = markdown.Parser().Parse(text.NewReader(b), parser.WithContext(parser.NewContext(parser.WithIDs(ids))))
	at := entry{}
	for n := p.doc.FirstChild(); n != nil; n = n.NextSibling() {
		h, ok := n.(*ast.Heading)
		if !ok {
			at.Text += plain(n, b) + " "
			continue
		}
		p.entries = append(p.entries, at)
		id, _ := h.AttributeString("id")
		name := string(id.([]byte))
		switch title := strings.TrimSpace(plain(h, b)); {
		case p.title == "":
			p.title, name = title, ""
			at = entry{Title: title}
		default:
			if h.Level == 2 {
				p.headings = append(p.headings, heading{name, title})
			}
			at = entry{Title: title, ID: name}
		}
	}
	p.entries = append(p.entries, at)[1:]
	return p
}

// ids gives headings the fragments that GitHub gives them.
type ids struct{ have map[string]bool }

func (i *ids) Generate(value []byte, _ ast.NodeKind) []byte {
	slug := strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, string(value))
	base := slug
	for n := 1; i.have[slug]; n++ {
		slug = fmt.Sprintf("%s-%d", base, n)
	}
	i.have[slug] = true
	return []byte(slug)
}

func (i *ids) Put(value []byte) { i.have[string(value)] = true }

// plain is a node's text, without markup.
func plain(n ast.Node, source []byte) string {
	var b strings.Builder
	_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		switch x := n.(type) {
		case *ast.Text:
			if entering {
				b.Write(x.Segment.Value(source))
				if x.SoftLineBreak() || x.HardLineBreak() {
					b.WriteByte(' ')
				}
			}
		case *ast.FencedCodeBlock, *ast.CodeBlock:
			if entering {
				b.Write(x.Lines().Value(source))
			}
		case *east.TableCell, *ast.ListItem, *ast.Paragraph:
			if !entering {
				b.WriteByte(' ')
			}
		}
		return ast.WalkContinue, nil
	})
	return b.String()
}

// resolve turns a page's links into those of the site.
func (s *site) resolve(p *page) error {
	return ast.Walk(p.doc, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		var err error
		switch x := n.(type) {
		case *ast.Link:
			x.Destination, err = s.address(p, string(x.Destination))
		case *ast.Image:
			x.Destination, err = s.address(p, string(x.Destination))
		}
		if err != nil {
			return ast.WalkStop, fmt.Errorf("%s: %w", p.path, err)
		}
		return ast.WalkContinue, nil
	})
}

// address is the site's address for a link of a page: another page, an image, or a file in the repository.
func (s *site) address(from *page, link string) ([]byte, error) {
	if strings.Contains(link, "://") || strings.HasPrefix(link, "mailto:") {
		return []byte(link), nil
	}
	file, fragment, _ := strings.Cut(link, "#")
	name := from.path
	if file != "" {
		name = path.Join(path.Dir(from.path), file)
	}
	if s.byPath[path.Join(name, "README.md")] != nil {
		name = path.Join(name, "README.md")
	}
	if to := s.byPath[name]; to != nil {
		if fragment != "" && !to.ids[fragment] {
			return nil, fmt.Errorf("link %s: %s has no such heading", link, name)
		}
		out := relative(from.path, to.target())
		if fragment != "" {
			out += "#" + fragment
		}
		return []byte(out), nil
	}
	info, err := fs.Stat(s.source, name)
	switch {
	case err != nil:
		return nil, fmt.Errorf("link %s: %w", link, err)
	case info.IsDir():
		return []byte(repository + "/tree/main/" + name), nil
	case slices.Contains([]string{".png", ".svg"}, path.Ext(name)):
		s.assets[name], err = fs.ReadFile(s.source, name)
		return []byte(relative(from.path, name)), err
	}
	return []byte(repository + "/blob/main/" + name), nil
}

// relative is the address of a file from a page, both from the root.
func relative(from, to string) string { return strings.Repeat("../", strings.Count(from, "/")) + to }

// readIndex reads the navigation from the index of tasks.
func (s *site) readIndex() error {
	of := s.byPath[index]
	if of == nil {
		return fmt.Errorf("%s is missing", index)
	}
	listed := map[*page]bool{}
	list := func(to *section, l link) {
		if !listed[l.Page] {
			listed[l.Page] = true
			to.Links = append(to.Links, l)
		}
	}
	var at *section
	for n := of.doc.FirstChild(); n != nil; n = n.NextSibling() {
		switch x := n.(type) {
		case *ast.Heading:
			if x.Level == 2 {
				at = &section{Title: plain(x, of.source)}
				s.Sections = append(s.Sections, at)
			}
			if len(s.Sections) == 1 {
				list(at, link{Page: s.byPath["README.md"]})
				list(at, link{Page: of})
			}
		case *east.Table:
			for row := x.FirstChild(); row != nil; row = row.NextSibling() {
				if l, ok := s.linkOf(row, of.source); ok && at != nil {
					list(at, l)
				}
			}
		}
	}
	runbooks, more := &section{Title: "Runbooks"}, &section{Title: "More"}
	for _, p := range s.pages {
		to := more
		if strings.HasPrefix(p.path, "docs/runbooks/") {
			to = runbooks
		}
		list(to, link{Page: p})
	}
	s.Sections = append(s.Sections, runbooks, more)
	return nil
}

// linkOf is the link of a row of the index, with the text of its other cell.
func (s *site) linkOf(row ast.Node, source []byte) (out link, ok bool) {
	for cell := row.FirstChild(); cell != nil; cell = cell.NextSibling() {
		l, is := cell.FirstChild().(*ast.Link)
		if !is {
			out.About = plain(cell, source)
			continue
		}
		for _, p := range s.pages {
			if relative(index, p.target()) == string(l.Destination) {
				out.Page, ok = p, true
			}
		}
	}
	out.About = strings.TrimSpace(out.About)
	return out, ok
}

// entry is a part of a page that the search finds.
type entry struct {
	Page  string `json:"p"` // its title
	URL   string `json:"u"` // from the root
	Title string `json:"t"` // of the heading
	Text  string `json:"x"`
	ID    string `json:"-"`
}

// entries are those of all pages, the index's pages first.
func (s *site) entries() (out []entry) {
	for _, p := range s.pages {
		for _, e := range p.entries {
			e.Page, e.URL = p.title, p.target()
			if e.ID != "" {
				e.URL += "#" + e.ID
			}
			e.Text = strings.Join(strings.Fields(e.Text), " ")
			out = append(out, e)
		}
	}
	return out
}
