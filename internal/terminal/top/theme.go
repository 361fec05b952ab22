// SPDX-License-Identifier: Apache-2.0

package top

import "fmt"

// Theme draws the styles with the terminal's own 16 colours, so that it fits light and dark
// ones. No state is told by its colour alone.
type Theme string

// The themes.
const (
	Standard Theme = "standard"
	Contrast Theme = "contrast" // blue and magenta instead of green and red
	NoColor  Theme = "none"     // bold and faint only
)

// Themes are the names of all themes.
var Themes = []Theme{Standard, Contrast, NoColor}

// ParseTheme parses the name of a theme.
func ParseTheme(s string) (Theme, error) {
	for _, t := range Themes {
		if string(t) == s {
			return t, nil
		}
	}
	return "", fmt.Errorf("%.40q: want standard, contrast or none", s)
}

// next returns the theme after t.
func (t Theme) next() Theme {
	for i, x := range Themes {
		if x == t {
			return Themes[(i+1)%len(Themes)]
		}
	}
	return Standard
}

// The SGR parameters of the styles.
var sgr = map[Theme][Strong + 1]string{
	Standard: {Faint: "90", Good: "32", Warn: "33", Bad: "1;31", Strong: "1"},
	Contrast: {Faint: "90", Good: "34", Warn: "1;33", Bad: "1;35", Strong: "1"},
	NoColor:  {Faint: "2", Bad: "1", Warn: "1", Strong: "1"},
}

// paint returns a text in a style.
func (t Theme) paint(s string, style Style) string {
	code := sgr[t][style]
	if code == "" || s == "" {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[m"
}

// reverse returns a text with its colours exchanged: the selected row, the view's tab.
func reverse(s string) string { return "\x1b[7m" + s + "\x1b[m" }
