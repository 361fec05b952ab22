// SPDX-License-Identifier: Apache-2.0

// Command site writes the documentation as a static site: HTML pages with a search that needs no server, the Markdown
// they are made from, and llms.txt, an index for programs that read text.
package main

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"flag"
	"fmt"
	"html/template"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/gpupilot/gpupilot/deploy/release/command"
)

//go:embed files
var files embed.FS

const (
	repository = "https://github.com/gpupilot/gpupilot"
	index      = "docs/README.md" // lists the pages by task
	summary    = "The autopilot for GPU fleets: it measures GPUs and inference servers, attributes the GPUs to pods, and sets the replicas of Kubernetes workloads within about a second."
)

func main() { command.Main("site", run) }

func run(_ context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("site", flag.ContinueOnError)
	source := flags.String("source", "../..", "the repository")
	dir := flags.String("out", "../../bin/site", "folder of the site, which is replaced")
	version := flags.String("version", "", "version that the pages show")
	if err := flags.Parse(args); err != nil {
		return err
	}
	s, err := read(os.DirFS(*source))
	if err != nil {
		return err
	}
	s.Version = *version
	if err := os.RemoveAll(*dir); err != nil {
		return err
	}
	n, err := s.write(*dir)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%d pages, %d files: %s\n", len(s.pages), n, filepath.Join(*dir, "index.html"))
	return err
}

// write writes the site, and returns the number of its files.
func (s *site) write(dir string) (n int, err error) {
	page, err := template.ParseFS(files, "files/page.html")
	if err != nil {
		return 0, err
	}
	put := func(name string, b []byte) error {
		n++
		name = filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		return os.WriteFile(name, b, 0o644)
	}
	for _, p := range s.pages {
		var b bytes.Buffer
		if err := page.Execute(&b, view{site: s, page: p}); err != nil {
			return n, fmt.Errorf("%s: %w", p.path, err)
		}
		if err := put(p.target(), b.Bytes()); err != nil {
			return n, err
		}
		if err := put(p.path, p.source); err != nil {
			return n, err
		}
	}
	for name, b := range s.assets {
		if err := put(name, b); err != nil {
			return n, err
		}
	}
	for _, name := range []string{"site.css", "site.js"} {
		b, err := files.ReadFile("files/" + name)
		if err != nil {
			return n, err
		}
		if err := put(name, b); err != nil {
			return n, err
		}
	}
	entries, err := json.Marshal(s.entries())
	if err != nil {
		return n, err
	}
	if err := put("search.json", entries); err != nil {
		return n, err
	}
	return n, put("llms.txt", []byte(s.llms()))
}

// view is what the template of a page reads.
type view struct {
	*site

	page *page
}

func (v view) Title() string       { return v.page.title }
func (v view) Body() template.HTML { return template.HTML(v.page.body) } // our own Markdown
func (v view) Root() string        { return strings.Repeat("../", strings.Count(v.page.path, "/")) }
func (v view) Source() string      { return repository + "/blob/main/" + v.page.path }
func (v view) Headings() []heading { return v.page.headings }

// Href is the address of a page from this one.
func (v view) Href(p *page) string    { return v.Root() + p.target() }
func (v view) IsHere(p *page) bool    { return p == v.page }
func (v view) IsOpen(s *section) bool { return s.has(v.page) }
func (v view) Markdown() string       { return path.Base(v.page.path) }

// llms is the index for programs that read text, as llmstxt.org proposes it.
func (s *site) llms() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# GPUPilot\n\n> %s\n\nEach page begins with a task and an example. Commands and objects in them are tested.\n", summary)
	for _, sec := range s.Sections {
		fmt.Fprintf(&b, "\n## %s\n\n", sec.Title)
		for _, l := range sec.Links {
			fmt.Fprintf(&b, "- [%s](%s)", l.Page.title, l.Page.path)
			if l.About != "" {
				fmt.Fprintf(&b, ": %s", l.About)
			}
			b.WriteByte('\n')
		}
	}
	return b.String()
}
