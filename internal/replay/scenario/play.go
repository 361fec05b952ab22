// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"fmt"
	"io"
	"os"

	"github.com/rogpeppe/go-internal/diff"
)

// Play runs one file and prints the decisions. ok is false if a promise is
// broken or a decision differs. With or without all, only changes are compared and
// written.
func Play(out io.Writer, path string, update, all bool) (ok bool, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return false, err
	}
	s, err := Parse(path, data)
	if err != nil {
		return false, err
	}
	moments, err := s.Run(nil)
	if err != nil {
		return false, fmt.Errorf("%s: %w", path, err)
	}
	got := Decisions(moments)
	shown := got
	if all {
		shown = AllDecisions(moments)
	}
	fmt.Fprintf(out, "%s: %s\n%s\n", path, s.Title, shown)
	broken := s.Broken(moments)
	for _, err := range broken {
		fmt.Fprintf(out, "broken: %v\n", err)
	}
	switch {
	case update:
		if err := os.WriteFile(path, s.WithDecisions(got), 0o644); err != nil {
			return false, err
		}
	case s.Recorded() != "" && s.Recorded() != got:
		fmt.Fprintf(out, "%s\n", diff.Diff("recorded", []byte(s.Recorded()), "now", []byte(got)))
		return false, nil
	}
	return len(broken) == 0, nil
}
