module github.com/org/hostlock-action

go 1.26.0

