"""Development tools: `holdfast dev`, `demo`, `init` and `bench`. Nothing else imports this package."""
