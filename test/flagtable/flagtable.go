// SPDX-License-Identifier: Apache-2.0

// Package flagtable renders the flags of a program as the tables of the documentation.
package flagtable

import (
	"fmt"
	"strings"

	"github.com/gpupilot/gpupilot/internal/base/flags"
)

// Markdown renders the options as Markdown: flag, variable, default, meaning.
func Markdown(options []flags.Option) string {
	var b strings.Builder
	b.WriteString("| flag | variable | default | meaning |\n|---|---|---|---|\n")
	fs := flags.Set("", options)
	for i := range options {
		o := &options[i]
		name, env := "`--"+o.Name+"`", ""
		if o.Alias != "" {
			name = "`-" + o.Alias + "`, " + name
		}
		value := strings.Trim(fs.Lookup(o.Name).DefValue, "[]") // of a list
		if value == "false" {
			value = ""
		}
		if value != "" {
			value = "`" + value + "`"
		}
		if o.Env != "" {
			env = "`" + o.Env + "`"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", name, env, value, strings.ReplaceAll(o.Help, "`", ""))
	}
	return b.String()
}
