// SPDX-License-Identifier: Apache-2.0

package top

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	tea "charm.land/bubbletea/v2"
)

// framesPerSecond bounds how often the screen is drawn. Only changed cells are sent.
const framesPerSecond = 10

// Run shows the live view until the user quits or ctx ends.
func Run(ctx context.Context, cfg Config, in io.Reader, out io.Writer) error {
	_, err := tea.NewProgram(New(ctx, cfg), tea.WithContext(ctx), tea.WithInput(in), tea.WithOutput(out), tea.WithFPS(framesPerSecond)).Run()
	if errors.Is(err, tea.ErrProgramKilled) && ctx.Err() != nil {
		err = nil // the user asked for the end
	}
	return err
}

// SetupPath is the file of the saved set-up.
func SetupPath() (string, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "gpupilot", "top.json"), nil
}

// maxSetup bounds the file of the set-up, in bytes.
const maxSetup = 64 << 10

// LoadSetup reads a saved set-up. Without a file it is empty.
func LoadSetup(path string) (s Setup, err error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, err
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, maxSetup))
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return Setup{}, fmt.Errorf("%s: %w", path, err)
	}
	if _, err := ParseTheme(string(s.Theme)); err != nil {
		s.Theme = ""
	}
	return s, nil
}

// SaveSetup writes a set-up.
func SaveSetup(path string, s *Setup) error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o600)
}
