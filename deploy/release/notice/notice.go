// SPDX-License-Identifier: Apache-2.0

// Package notice lists what a program was made of, from the program's own build information: the licence texts of its
// modules, and an SPDX document.
package notice

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/google/licensecheck"
)

// Component is something that a program or an image contains and that others wrote.
type Component struct {
	Name, Version string
	PURL          string // package URL
	License       string // SPDX expression, or empty if the texts are not a known licence
	Source        string // where the component comes from, as text
	SHA256        string // of the file that the component came in, hexadecimal; or empty
	Texts         []Text // of its licences; empty where the image has them in a file of their own
}

// Text is a licence or notice file.
type Text struct {
	File string // path within the component
	Data []byte
}

// Reader finds the licences of modules.
type Reader struct {
	ModCache string // Go's module cache, see go env GOMODCACHE
	GoRoot   string // of the Go version that builds
}

// NewReader asks the go command where the licences are.
func NewReader(ctx context.Context) (Reader, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOMODCACHE", "GOROOT").Output()
	if err != nil {
		return Reader{}, fmt.Errorf("go env: %w", err)
	}
	paths := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(paths) != 2 {
		return Reader{}, fmt.Errorf("go env GOMODCACHE GOROOT printed %q", out)
	}
	return Reader{ModCache: paths[0], GoRoot: paths[1]}, nil
}

// Program returns the components of a Go program: the modules that are linked into it or into programs that it embeds,
// and Go's standard library. A module without a licence file is an error, because we may not redistribute it.
func (r Reader) Program(file string) ([]Component, error) {
	info, err := buildinfo.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("build information of %s: %w", file, err)
	}
	if info.Deps, err = withEmbedded(file, info.Deps); err != nil {
		return nil, err
	}
	version := strings.TrimPrefix(info.GoVersion, "go")
	std := Component{Name: "stdlib", Version: version, PURL: "pkg:golang/stdlib@" + version, Source: "Go's standard library and runtime"}
	if std.Texts, err = texts(r.GoRoot, false); err != nil {
		return nil, err
	}
	components := []Component{std}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		c := Component{
			Name: m.Path, Version: m.Version, PURL: "pkg:golang/" + m.Path + "@" + m.Version, Source: "Go module, go.sum " + m.Sum,
		}
		if c.Texts, err = texts(filepath.Join(r.ModCache, escape(m.Path)+"@"+escape(m.Version)), true); err != nil {
			return nil, fmt.Errorf("module %s %s: %w (go mod download %s@%s)", m.Path, m.Version, err, m.Path, m.Version)
		}
		components = append(components, c)
	}
	for i, c := range components {
		if components[i].License = identify(c.Texts); len(c.Texts) == 0 {
			return nil, fmt.Errorf("%s %s has no licence file: it may not be distributed", c.Name, c.Version)
		}
	}
	return components, nil
}

// withEmbedded adds the modules of the Go programs that a program embeds (gpupilot has its GPU worker).
func withEmbedded(file string, deps []*debug.Module) ([]*debug.Module, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	magic := []byte("\x7fELF")
	for at := len(magic); ; at += len(magic) {
		i := bytes.Index(data[at:], magic)
		if i < 0 {
			return deps, nil
		}
		at += i
		info, err := buildinfo.Read(bytes.NewReader(data[at:]))
		if err != nil {
			continue // the text of a constant
		}
		for _, m := range info.Deps {
			if !slices.ContainsFunc(deps, func(d *debug.Module) bool { return d.Path == m.Path }) {
				deps = append(deps, m)
			}
		}
	}
}

// escape is the module cache's way of writing upper-case letters.
func escape(s string) string {
	return regexp.MustCompile(`[A-Z]`).ReplaceAllStringFunc(s, func(c string) string { return "!" + strings.ToLower(c) })
}

var textName = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents|third.?party.?(licenses|notices))([.-].*)?$`)

// notText are endings of names that match textName but are not texts.
var notText = regexp.MustCompile(`(?i)\.(go|py|sh|js|json|ya?ml|tmpl|tpl)$`)

// texts finds licence and notice files: in dir, and below it if deep, where code that was copied into a module has its
// own.
func texts(dir string, deep bool) ([]Text, error) {
	var found []Text
	err := filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && file != dir && (!deep || slices.Contains([]string{"testdata", "vendor", "node_modules"}, d.Name())):
			return filepath.SkipDir
		case d.IsDir() || !d.Type().IsRegular() || !textName.MatchString(d.Name()) || notText.MatchString(d.Name()):
			return nil
		}
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, file)
		found = append(found, Text{File: filepath.ToSlash(name), Data: data})
		return err
	})
	return found, err
}

// minCover is the share of a text, in percent, that must be a licence for the text to be that licence.
const minCover = 75

// identify returns the SPDX expression of the licences in a component's top folder.
func identify(texts []Text) string {
	var ids []string
	for _, t := range texts {
		if strings.Contains(t.File, "/") || strings.HasPrefix(t.File, "PATENTS") {
			continue // of a part of the component; a grant of patents is no licence that SPDX has a name for
		}
		cover := licensecheck.Scan(t.Data)
		if cover.Percent < minCover {
			continue
		}
		for _, m := range cover.Match {
			if !slices.Contains(ids, m.ID) && !m.IsURL {
				ids = append(ids, m.ID)
			}
		}
	}
	slices.Sort(ids)
	return strings.Join(ids, " AND ")
}

// Notices is the file of all licence texts. Equal texts are there once.
func Notices(program string, components []Component) []byte {
	var order []string
	users := map[string][]string{}
	for _, c := range components {
		for _, t := range c.Texts {
			text := strings.TrimSpace(strings.ReplaceAll(string(t.Data), "\r\n", "\n"))
			if users[text] == nil {
				order = append(order, text)
			}
			users[text] = append(users[text], fmt.Sprintf("%s %s (%s)", c.Name, c.Version, t.File))
		}
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s contains the following components, under the licences that follow each list.\n", program)
	for _, text := range order {
		fmt.Fprintf(&b, "\n%s\n\n%s\n\n%s\n", strings.Repeat("=", 100), strings.Join(users[text], "\n"), text)
	}
	return b.Bytes()
}

// Folder returns the licence texts in a folder of our own source, which has the code of others.
func Folder(name, version, dir string) (Component, error) {
	found, err := texts(dir, true)
	return Component{Name: name, Version: version, Texts: found, Source: "copied into GPUPilot's source"}, err
}
